//! Several copies as one: any thread that has time takes the next piece.
#![expect(unsafe_code, reason = "copies memory that the operations keep alive")]

use crate::copy::pull::Pull;
use crate::copy::way::{Direction, Kind, Target};
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::process::generation;
use crate::span::Span;
use crate::stop::Stop;
use crate::transfers::alarm::Alarm;
use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How many bytes a transfer has at most that waits for its caller to do it.
const SHORT_LEN_MAX: usize = 64 << 10;

/// One part of a transfer.
pub enum Operation {
    /// Between our memory and a buffer.
    Copy(Copy),
    /// From a buffer to a registered one of ours.
    Pull(Pull),
}

/// One copy between our memory and a buffer.
pub struct Copy {
    /// The buffer.
    pub target: Arc<Target>,
    /// Which way.
    pub direction: Direction,
    /// Our memory; what keeps it alive is given to the transfer.
    pub local: Span,
    /// Where the range of the buffer begins.
    pub offset: u64,
}

/// Copies that begin, end and are given up together.
pub struct Transfer {
    operations: Vec<Operation>,
    /// For each operation, how many pieces there are up to its end.
    piece_ends: Vec<usize>,
    next: AtomicUsize,
    /// The number of pool threads that copy pieces of it, and the limit.
    workers: AtomicUsize,
    workers_max: usize,
    stop: Stop,
    progress: Mutex<Progress>,
    done: Condvar,
    /// Which process has begun it: the threads of another one work on it.
    generation: usize,
    /// Our memory is alive for as long as this is; none when nothing of it is used any more.
    keepers: Mutex<Option<Box<dyn Any + Send + Sync>>>,
    /// Rings if nobody has begun it after a moment.
    alarm: OnceLock<Arc<Alarm>>,
}

#[derive(Default)]
struct Progress {
    finished: usize,
    error: Option<DataError>,
    outcome: Option<Result<(), Arc<DataError>>>,
    callbacks: Vec<Box<dyn FnOnce() + Send>>,
}

impl Transfer {
    /// Copies that may take as long as `stop` lets them.
    ///
    /// # Safety
    /// The memory of all operations is mapped for as long as `keepers` is not dropped.
    pub unsafe fn new(
        operations: Vec<Operation>,
        stop: Stop,
        keepers: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        let mut end = 0;
        let piece_ends = operations.iter().map(|one| {
            end += one.piece_count();
            end
        });
        let piece_ends = piece_ends.collect();
        // What waits for one process is done by as many as it has connections for one transfer.
        let lanes = operations.iter().map(|one| (one.target().lane(), one.target().width()));
        let lanes: HashMap<_, _> = lanes.collect();
        let workers_max = lanes.into_values().sum::<usize>().max(1);
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
            keepers: Mutex::new(Some(keepers)),
            alarm: OnceLock::new(),
        };
        if transfer.piece_count() == 0 {
            lock(&transfer.progress).outcome = Some(Ok(()));
        }
        Arc::new(transfer)
    }

    /// Has threads of the domain begin.
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

    /// Leaves it to its caller until an alarm rings.
    pub(crate) fn linger(&self, alarm: &Arc<Alarm>) {
        let is_first = self.alarm.set(Arc::clone(alarm)).is_ok();
        debug_assert!(is_first, "a transfer is started once");
    }

    /// Whether waking a thread takes longer than all of it, while its caller is likely to wait.
    fn is_short(&self) -> bool {
        self.piece_count() == 1
            && self.may_block()
            && self.operations.iter().all(|one| one.len() <= SHORT_LEN_MAX)
    }

    /// Whether a piece may wait for another process, and not only for memory.
    pub fn may_block(&self) -> bool {
        self.operations.iter().any(|one| matches!(one.target().kind(), Kind::Unix | Kind::Tcp))
    }

    /// Copies pieces in this thread until none is left to begin, or `is_enough` returns true. Pieces
    /// that need a connection are left to the threads of the pool.
    pub fn help(&self, mut is_enough: impl FnMut() -> bool) {
        if self.piece_count() == 1 || !self.may_block() {
            while !is_enough() && self.do_next() {}
        }
    }

    /// A pool thread begins to copy pieces; returns whether it may.
    pub(crate) fn enter(&self) -> bool {
        let more = |workers| (workers < self.workers_max).then_some(workers + 1);
        self.has_pieces()
            && self.workers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// A pool thread has ended.
    pub(crate) fn leave(&self) {
        self.workers.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a piece is left to begin.
    pub(crate) fn has_pieces(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.piece_count()
    }

    /// How many more pool threads have pieces to copy.
    pub(crate) fn places(&self) -> usize {
        let left = self.piece_count().saturating_sub(self.next.load(Ordering::Relaxed));
        left.min(self.workers_max.saturating_sub(self.workers.load(Ordering::Relaxed)))
    }

    /// Waits until all is done; tells whether it is.
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

    /// Whether it is a transfer of the process that this one was forked from.
    pub fn is_stale(&self) -> bool {
        self.generation != generation()
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        lock(&self.progress).outcome.is_some()
    }

    /// How it has ended, if it has.
    pub fn outcome(&self) -> Option<Result<(), Arc<DataError>>> {
        lock(&self.progress).outcome.clone()
    }

    /// Gives our memory back if it has ended, and not only when the last thread has seen that.
    pub fn let_go(&self) {
        if self.is_done() {
            let keepers = lock(&self.keepers).take();
            // Outside the lock: it may run code of others.
            drop(keepers);
        }
    }

    /// Gives it up: it ends once what is being copied now has stopped. Tells whether that is why.
    pub fn cancel(&self) -> bool {
        !self.is_done() && self.stop.cancel()
    }

    /// Calls back when it has ended, at once if it has, from whatever thread ends it.
    pub fn when_done(&self, callback: Box<dyn FnOnce() + Send>) {
        let mut progress = lock(&self.progress);
        if progress.outcome.is_none() {
            progress.callbacks.push(callback);
            drop(progress);
            // Who wants to be told does not wait.
            if self.has_pieces()
                && let Some(alarm) = self.alarm.get()
            {
                alarm.ring();
            }
            return;
        }
        drop(progress);
        callback();
    }

    pub(crate) fn piece_count(&self) -> usize {
        self.piece_ends.last().copied().unwrap_or(0)
    }

    /// Does the next piece, if there is one left.
    pub(crate) fn do_next(&self) -> bool {
        let piece = self.next.fetch_add(1, Ordering::Relaxed);
        if piece >= self.piece_count() {
            self.next.store(self.piece_count(), Ordering::Relaxed);
            return false;
        }
        if let Some(alarm) = self.alarm.get() {
            alarm.happened();
        }
        // A piece that panics has ended too: whoever waits must hear of it.
        let copy = AssertUnwindSafe(|| self.stop.check().and_then(|()| self.copy(piece)));
        let result = catch_unwind(copy).unwrap_or_else(|_| {
            let source = std::io::Error::other("a fault of mesh-rdma: see standard error");
            Err(DataError::System { doing: "cannot copy", source })
        });
        let mut progress = lock(&self.progress);
        if let Err(error) = result {
            self.stop.fail();
            // The first says why; what stops because of it has nothing to add, unless it is that
            // nobody knows whether all is at rest.
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
            // SAFETY: the keepers are alive: this piece has not ended.
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
            // Nobody here waits for it.
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
    /// Our memory is mapped, for writing where it is written.
    unsafe fn run(&self, piece: usize, stop: &Stop) -> Result<(), DataError> {
        let piece_len = self.target.piece_len(self.local.len);
        let start = piece * piece_len;
        let len = piece_len.min(self.local.len - start);
        let local = self.local.part(start, len).expect("a piece of the operation");
        // SAFETY: the caller's.
        unsafe { self.target.copy(self.direction, local, self.offset + start as u64, stop) }
    }
}
