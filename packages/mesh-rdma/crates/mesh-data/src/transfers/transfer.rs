//! Transfers: sets of copies whose pieces any available thread executes.
#![expect(unsafe_code, reason = "copies memory that the operations keep alive")]

use crate::copy::pull::Pull;
use crate::copy::target::{Direction, Target, Transport};
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::process::generation;
use crate::span::Span;
use crate::stop::Stop;
use crate::transfers::timer::Timer;
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// The maximum size of a transfer that is reserved for its caller.
const SHORT_LEN_MAX: usize = 64 << 10;

/// One operation of a transfer.
pub enum Operation {
    /// A copy between local memory and a buffer.
    Copy(Copy),
    /// A copy from a buffer to a registration of this process.
    Pull(Pull),
}

/// One copy between local memory and a buffer.
pub struct Copy {
    /// The buffer.
    pub target: Arc<Target>,
    /// The direction of the copy.
    pub direction: Direction,
    /// The local memory; the memory owners of the transfer keep it alive.
    pub local: Span,
    /// The offset of the range in the buffer.
    pub offset: u64,
}

/// Copies that are started, completed and cancelled together.
pub struct Transfer {
    operations: Vec<Operation>,
    /// For each operation, the number of pieces up to its end.
    piece_ends: Vec<usize>,
    next: AtomicUsize,
    /// The number of pool threads that copy pieces of it, and the limit.
    workers: AtomicUsize,
    workers_max: usize,
    stop: Stop,
    progress: Mutex<Progress>,
    done: Condvar,
    /// The generation of the process that created it, whose threads execute it.
    generation: usize,
    /// Keeps the local memory alive; `None` once the memory is no longer in use.
    memory_owners: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    /// Expires if no thread has started a short transfer in time.
    timer: OnceLock<Arc<Timer>>,
}

#[derive(Default)]
struct Progress {
    finished: usize,
    error: Option<DataError>,
    outcome: Option<Result<(), Arc<DataError>>>,
    callbacks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Transfer {
    /// Creates a transfer that runs until it is complete or `stop` ends it.
    ///
    /// # Safety
    /// The memory of all operations is mapped until `memory_owners` is dropped.
    pub unsafe fn new(
        operations: Vec<Operation>,
        stop: Stop,
        memory_owners: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let mut end = 0;
        let piece_ends = operations.iter().map(|one| {
            end += one.piece_count();
            end
        });
        let piece_ends = piece_ends.collect();
        // The number of threads that copy over connections to one process is the number of
        // connections per transfer.
        let groups =
            operations.iter().map(|one| (one.target().stream_group(), one.target().width()));
        let groups: HashMap<_, _> = groups.collect();
        let workers_max = groups.into_values().sum::<usize>().max(1);
        let transfer = Self {
            operations,
            piece_ends,
            next: AtomicUsize::new(0),
            workers: AtomicUsize::new(0),
            workers_max,
            stop,
            progress: Mutex::default(),
            done: Condvar::new(),
            generation: generation(),
            memory_owners: Mutex::new(Some(memory_owners)),
            timer: OnceLock::new(),
        };
        if transfer.piece_count() == 0 {
            lock(&transfer.progress).outcome = Some(Ok(()));
        }
        Arc::new(transfer)
    }

    /// Starts the transfer in threads of the domain.
    pub fn start(self: &Arc<Self>, domain: &Domain) {
        if self.is_done() {
            return;
        }
        if self.is_short() {
            domain.thread_pool.add_short(self);
        } else {
            domain.thread_pool.add(self);
        }
    }

    /// Reserves the transfer for its caller until the timer expires.
    pub(crate) fn leave_to_caller(&self, timer: &Arc<Timer>) {
        let is_first = self.timer.set(Arc::clone(timer)).is_ok();
        debug_assert!(is_first, "a transfer is started once");
    }

    /// Whether waking a thread would take longer than the transfer, which its caller probably
    /// awaits.
    fn is_short(&self) -> bool {
        self.piece_count() == 1
            && self.may_block()
            && self.operations.iter().all(|one| one.len() <= SHORT_LEN_MAX)
    }

    /// Whether a piece may wait for another process, and not only for memory.
    pub fn may_block(&self) -> bool {
        self.operations
            .iter()
            .any(|one| matches!(one.target().transport(), Transport::Unix | Transport::Tcp))
    }

    /// Executes pieces in this thread until all are started, or `is_enough` returns true. Pieces
    /// that need a connection are executed by the threads of the pool.
    pub fn run_pieces(&self, mut is_enough: impl FnMut() -> bool) {
        if self.piece_count() == 1 || !self.may_block() {
            while !is_enough() && self.do_next() {}
        }
    }

    /// Registers a pool thread that wants to execute pieces; returns whether it may.
    pub(crate) fn enter(&self) -> bool {
        let more = |workers| (workers < self.workers_max).then_some(workers + 1);
        self.has_pieces()
            && self.workers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Unregisters a pool thread.
    pub(crate) fn leave(&self) {
        self.workers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a piece has not been started.
    pub(crate) fn has_pieces(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.piece_count()
    }

    /// The number of additional pool threads for which there are pieces.
    pub(crate) fn thread_demand(&self) -> usize {
        let left = self.piece_count().saturating_sub(self.next.load(Ordering::Relaxed));
        left.min(self.workers_max.saturating_sub(self.workers.load(Ordering::Relaxed)))
    }

    /// Waits until the transfer has ended; returns whether it has.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut progress = lock(&self.progress);
        while progress.outcome.is_none() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            progress = match left {
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let waited = self.done.wait_timeout(progress, left);
                    waited.unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
                None => self.done.wait(progress).unwrap_or_else(std::sync::PoisonError::into_inner),
            };
        }
        true
    }

    /// Whether it belongs to the parent of this forked process.
    pub fn is_stale(&self) -> bool {
        self.generation != generation()
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        lock(&self.progress).outcome.is_some()
    }

    /// The outcome, if it has ended.
    pub fn outcome(&self) -> Option<Result<(), Arc<DataError>>> {
        lock(&self.progress).outcome.clone()
    }

    /// Releases the local memory if the transfer has ended, without waiting for its last thread.
    pub fn free_memory(&self) {
        if self.is_done() {
            let memory_owners = lock(&self.memory_owners).take();
            // This happens without the lock, because it may run foreign code.
            drop(memory_owners);
        }
    }

    /// Cancels the transfer, which ends when its running pieces have stopped. Returns whether this
    /// call is the reason for its end.
    pub fn cancel(&self) -> bool {
        !self.is_done() && self.stop.cancel()
    }

    /// Calls `callback` when the transfer has ended, immediately if it has, from the thread that
    /// ends it.
    pub fn when_done(&self, callback: Box<dyn FnOnce() + Send>) {
        let mut progress = lock(&self.progress);
        if progress.outcome.is_none() {
            progress.callbacks.push(callback);
            drop(progress);
            // A caller that uses callbacks does not wait, so a pool thread must execute the
            // transfer.
            if self.has_pieces()
                && let Some(timer) = self.timer.get()
            {
                timer.fire();
            }
            return;
        }
        drop(progress);
        callback();
    }

    pub(crate) fn piece_count(&self) -> usize {
        self.piece_ends.last().copied().unwrap_or(0)
    }

    /// Executes the next piece, if any.
    pub(crate) fn do_next(&self) -> bool {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        if piece >= self.piece_count() {
            self.next.store(self.piece_count(), Ordering::Relaxed);
            return false;
        }
        if let Some(timer) = self.timer.get() {
            timer.occurred();
        }
        // A piece that panics has ended, too, and must be reported to waiting threads.
        let copy = AssertUnwindSafe(|| self.stop.check().and_then(|()| self.copy(piece)));
        let result = catch_unwind(copy).unwrap_or_else(|_| {
            let source = std::io::Error::other("a fault of mesh-rdma: see standard error");
            Err(DataError::System { doing: "cannot copy", source })
        });
        let mut progress = lock(&self.progress);
        if let Err(error) = result {
            self.stop.fail();
            // The first error is the cause; later ones are consequences of it, and are ignored
            // unless they report that data may still be written.
            let is_news = match &progress.error {
                None => true,
                Some(DataError::Deadline | DataError::Cancelled) => {
                    matches!(error, DataError::Unsettled { .. })
                }
                Some(_) => false,
            };
            if is_news {
                progress.error = Some(error);
            }
        }
        progress.finished += 1;
        if progress.finished == self.piece_count() {
            progress.outcome =
                Some(progress.error.take().map_or(Ok(()), |error| Err(error.into())));
            let callbacks = std::mem::take(&mut progress.callbacks);
            drop(progress);
            self.done.notify_all();
            callbacks.into_iter().for_each(|callback| callback());
        }
        true
    }

    fn copy(&self, piece: usize) -> Result<(), DataError> {
        let at = self.piece_ends.partition_point(|end| *end <= piece);
        let first = if at == 0 { 0 } else { self.piece_ends[at - 1] };
        match &self.operations[at] {
            // SAFETY: the memory owners are alive, because this piece has not ended.
            Operation::Copy(copy) => unsafe { copy.run(piece - first, &self.stop) },
            Operation::Pull(pull) => pull.run(piece - first, &self.stop),
        }
    }
}

impl Operation {
    fn target(&self) -> &Target {
        match self {
            Self::Copy(copy) => &copy.target,
            Self::Pull(pull) => pull.source(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Copy(copy) => copy.local.len,
            // No thread of this process waits for it.
            Self::Pull(_) => usize::MAX,
        }
    }

    fn piece_count(&self) -> usize {
        match self {
            Self::Copy(copy) => {
                copy.local.len.div_ceil(copy.target.piece_len(copy.local.len)).max(1)
            }
            Self::Pull(pull) => pull.piece_count(),
        }
    }
}

impl Copy {
    /// # Safety
    /// The local memory is mapped, for writing if the direction is [`Direction::Read`].
    unsafe fn run(&self, piece: usize, stop: &Stop) -> Result<(), DataError> {
        let piece_len = self.target.piece_len(self.local.len);
        let start = piece * piece_len;
        let len = piece_len.min(self.local.len - start);
        let local = self.local.part(start, len).expect("a piece of the operation");
        // SAFETY: the caller guarantees it.
        unsafe { self.target.copy(self.direction, local, self.offset + start as u64, stop) }
    }
}
