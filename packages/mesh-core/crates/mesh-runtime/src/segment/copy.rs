//! Copies of large payloads, shared between the caller and a helper thread.
//!
//! One core does not use the whole memory bandwidth of a machine, and while a payload is copied the
//! processes that wait for it are idle. The caller never waits for a helper to start: both take
//! stretches from the same list, so on a busy machine the caller copies all of them.
#![expect(unsafe_code, reason = "copies between raw addresses on two threads")]

use super::pages::{HUGE_LEN, advise_huge};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The caller makes shorter copies alone: waking a thread takes as long.
const SHARED_LEN_MIN: usize = 4 << 20;
/// The same limit if the thread has to be created first.
const FRESH_SHARED_LEN_MIN: usize = 8 << 20;
/// Bytes copied between two accesses to the list.
const CHUNK_LEN: usize = 512 << 10;
/// Default number of threads for one copy.
///
/// Two threads use all the bandwidth that a machine can spare for one process.
pub(super) const THREADS_MAX: usize = 2;
/// A helper calls nothing but `memcpy`.
const STACK_LEN: usize = 64 << 10;

/// Bytes to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    pub(super) from: *const u8,
    pub(super) to: *mut u8,
    pub(super) len: usize,
}

// SAFETY: the addresses are used only between the call of `Copier::copy` and its return, and its
// caller guarantees their validity until then.
unsafe impl Send for Chunk {}

impl Chunk {
    /// # Safety
    /// As for [`Copier::copy`].
    unsafe fn copy(self) {
        // SAFETY: the obligation is passed on to the caller.
        unsafe { ptr::copy_nonoverlapping(self.from, self.to, self.len) }
    }
}

/// The state that the caller and the helpers share.
#[derive(Default)]
struct Work {
    /// Stretches that no thread has started.
    waiting: Vec<Chunk>,
    /// Stretches that a helper has started and not finished.
    running: usize,
    /// Whether a caller currently uses this state.
    is_taken: bool,
    is_closed: bool,
    helpers: usize,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    /// Signalled when stretches are waiting, or when the copier is closed.
    has_work: Condvar,
    /// Signalled when the last started stretch is finished.
    is_done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a helper thread.
    fn run_helper(&self) {
        let mut work = self.lock();
        while !work.is_closed {
            let Some(chunk) = work.waiting.pop() else {
                work = self.has_work.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            work.running += 1;
            drop(work);
            // SAFETY: the caller of `Copier::copy` waits for all started stretches.
            unsafe { chunk.copy() };
            work = self.lock();
            work.running -= 1;
            if work.running == 0 && work.waiting.is_empty() {
                self.is_done.notify_one();
            }
        }
    }
}

/// Copies on the calling thread and, if it pays off, on additional helper threads.
pub(super) struct Copier {
    shared: Arc<Shared>,
    helpers_max: usize,
    chunk_len: usize,
    /// The process that has the helpers.
    ///
    /// In a fork of it a helper may appear to hold the lock forever.
    pid: u32,
}

impl Copier {
    /// Creates a copier that uses at most `threads_max` threads, including the caller's.
    pub(super) fn new(threads_max: usize) -> Self {
        Self::with_chunk_len(threads_max, CHUNK_LEN)
    }

    fn with_chunk_len(threads_max: usize, chunk_len: usize) -> Self {
        let helpers_max = threads_max.min(cores()).saturating_sub(1);
        let shared = Arc::default();
        Self { shared, helpers_max, chunk_len, pid: std::process::id() }
    }

    /// Makes all copies; when it returns, no thread uses the addresses any more.
    ///
    /// # Safety
    /// Every `from` is readable and every `to` writable for `len` bytes, by any thread, until the
    /// call returns; no `to` overlaps another stretch.
    pub(super) unsafe fn copy(&self, chunks: &[Chunk]) {
        let len: usize = chunks.iter().map(|chunk| chunk.len).sum();
        if len < SHARED_LEN_MIN || self.helpers_max == 0 || !self.offer_to_helpers(chunks) {
            // SAFETY: the obligation is passed on to the caller.
            chunks.iter().for_each(|chunk| unsafe { chunk.copy() });
            return;
        }
        let mut work = self.shared.lock();
        while let Some(chunk) = work.waiting.pop() {
            drop(work);
            // SAFETY: the obligation is passed on to the caller.
            unsafe { chunk.copy() };
            work = self.shared.lock();
        }
        while work.running > 0 {
            work = self.shared.is_done.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.is_taken = false;
    }

    /// Offers the work to the helpers; returns `false` if they have the work of another caller.
    fn offer_to_helpers(&self, chunks: &[Chunk]) -> bool {
        let mut work = self.shared.lock();
        if work.is_taken {
            return false;
        }
        work.is_taken = true;
        let cut = |chunk: &Chunk| cut(*chunk, self.chunk_len);
        work.waiting.extend(chunks.iter().flat_map(cut));
        // The list is taken from its end.
        work.waiting.reverse();
        for _ in work.helpers..self.helpers_max {
            let shared = Arc::clone(&self.shared);
            let helper = thread::Builder::new().name("mesh-copy".into()).stack_size(STACK_LEN);
            // Without a helper the caller does the work.
            work.helpers += usize::from(helper.spawn(move || shared.run_helper()).is_ok());
        }
        self.shared.has_work.notify_all();
        true
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            self.shared.lock().is_closed = true;
            self.shared.has_work.notify_all();
        }
    }
}

/// Copies all of `from` to the start of `to`, which is new memory that has no pages yet.
///
/// Most of the time of such a copy is spent on page faults, so huge pages are requested, and from 8
/// MB a second thread helps. The thread ends with the copy, so a fork in another thread cannot
/// leave a helper behind.
///
/// # Panics
/// If `to` is shorter than `from`.
pub fn copy_fresh(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert!(from.len() <= to.len(), "the target is long enough");
    advise_huge(to.as_mut_ptr_range());
    let threads = if from.len() < FRESH_SHARED_LEN_MIN { 1 } else { THREADS_MAX };
    // Two threads that touch one huge page for the first time would both clear one.
    let copier = Copier::with_chunk_len(threads, HUGE_LEN);
    let to = to.as_mut_ptr().cast();
    let chunk = Chunk { from: from.as_ptr(), to, len: from.len() };
    // SAFETY: both are borrowed until we return, `to` for us alone, and it is long enough.
    unsafe { copier.copy(&[chunk]) };
}

/// Appends bytes to a vector whose spare capacity is new memory, like [`copy_fresh`].
pub fn extend_fresh(to: &mut Vec<u8>, from: &[u8]) {
    to.reserve(from.len());
    copy_fresh(from, to.spare_capacity_mut());
    // SAFETY: the bytes after the old end are within the capacity, and they were just written.
    unsafe { to.set_len(to.len() + from.len()) };
}

/// Returns the number of cores, cached because the query takes longer than a small copy.
fn cores() -> usize {
    static CORES: AtomicUsize = AtomicUsize::new(0);
    match CORES.load(Ordering::Relaxed) {
        0 => {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            CORES.store(cores, Ordering::Relaxed);
            cores
        }
        cores => cores,
    }
}

/// Returns pieces that end where the target's address is a multiple of `len`.
fn cut(chunk: Chunk, len: usize) -> impl Iterator<Item = Chunk> {
    let start = chunk.to.addr();
    let end = start + chunk.len;
    let first = (start / len * len..end).step_by(len);
    first.map(move |at| {
        let (from, to) = (at.max(start) - start, (at + len).min(end) - start);
        Chunk {
            from: chunk.from.wrapping_add(from),
            to: chunk.to.wrapping_add(from),
            len: to - from,
        }
    })
}
