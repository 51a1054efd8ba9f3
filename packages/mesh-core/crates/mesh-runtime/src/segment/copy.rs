//! Copies of large payloads, shared between the caller and a thread that helps.
//!
//! One core does not use all of a machine's memory bandwidth, and while a payload is copied the
//! processes that wait for it are idle. The caller never waits for a helper to begin: both take
//! stretches off the same list, so on a busy machine the caller simply does them all.
#![expect(unsafe_code, reason = "copies between raw addresses on two threads")]

use super::pages::{HUGE_LEN, advise_huge};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Copies shorter than this are made by the caller alone: to wake a thread takes as long.
const SHARED_LEN_MIN: usize = 4 << 20;
/// As above, where the thread has to be made first.
const FRESH_SHARED_LEN_MIN: usize = 8 << 20;
/// How much is copied between two looks at the list.
const STRETCH_LEN: usize = 512 << 10;
/// Threads of one copy, unless a pool says otherwise. Two take all the bandwidth that a machine
/// has to spare for one process.
pub(super) const THREADS_MAX: usize = 2;
/// A helper calls nothing but `memcpy`.
const STACK_LEN: usize = 64 << 10;

/// Bytes to be copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) from: *const u8,
    pub(super) to: *mut u8,
    pub(super) len: usize,
}

// SAFETY: the addresses are used only between `Copier::copy` being called and returning, and its
// caller vouches for them until then.
unsafe impl Send for Stretch {}

impl Stretch {
    /// # Safety
    /// As for [`Copier::copy`].
    unsafe fn copy(self) {
        // SAFETY: passed on to the caller.
        unsafe { ptr::copy_nonoverlapping(self.from, self.to, self.len) }
    }
}

/// What the caller and the helpers share.
#[derive(Default)]
struct Work {
    /// Stretches that nobody has begun.
    waiting: Vec<Stretch>,
    /// Stretches that a helper has begun and not finished.
    begun: usize,
    /// Whether a caller has its work here.
    is_taken: bool,
    is_closed: bool,
    helpers: usize,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    /// There is work, or there never will be again.
    has_work: Condvar,
    /// The last stretch that was begun is finished.
    is_done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a helper.
    fn help(&self) {
        let mut work = self.lock();
        while !work.is_closed {
            let Some(stretch) = work.waiting.pop() else {
                work = self.has_work.wait(work).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            work.begun += 1;
            drop(work);
            // SAFETY: the caller of `Copier::copy` waits for what was begun.
            unsafe { stretch.copy() };
            work = self.lock();
            work.begun -= 1;
            if work.begun == 0 && work.waiting.is_empty() {
                self.is_done.notify_one();
            }
        }
    }
}

/// Copies on the calling thread and, where it pays, on helpers beside it.
pub(super) struct Copier {
    shared: Arc<Shared>,
    helpers_max: usize,
    stretch_len: usize,
    /// The process that has the helpers; in a fork of it one may seem to hold the lock for ever.
    pid: u32,
}

impl Copier {
    /// A copier that uses at most `threads_max` threads, the caller's among them.
    pub(super) fn new(threads_max: usize) -> Self {
        Self::with_stretches(threads_max, STRETCH_LEN)
    }

    fn with_stretches(threads_max: usize, stretch_len: usize) -> Self {
        let helpers_max = threads_max.min(cores()).saturating_sub(1);
        let shared = Arc::default();
        Self { shared, helpers_max, stretch_len, pid: std::process::id() }
    }

    /// Makes all copies; when it returns, no thread uses the addresses any more.
    ///
    /// # Safety
    /// Every `from` is readable and every `to` writable for `len` bytes, by any thread, until the
    /// call returns; no `to` overlaps another stretch.
    pub(super) unsafe fn copy(&self, stretches: &[Stretch]) {
        let len: usize = stretches.iter().map(|stretch| stretch.len).sum();
        if len < SHARED_LEN_MIN || self.helpers_max == 0 || !self.offer(stretches) {
            // SAFETY: passed on to the caller.
            stretches.iter().for_each(|stretch| unsafe { stretch.copy() });
            return;
        }
        let mut work = self.shared.lock();
        while let Some(stretch) = work.waiting.pop() {
            drop(work);
            // SAFETY: passed on to the caller.
            unsafe { stretch.copy() };
            work = self.shared.lock();
        }
        while work.begun > 0 {
            work = self.shared.is_done.wait(work).unwrap_or_else(PoisonError::into_inner);
        }
        work.is_taken = false;
    }

    /// Puts the work where helpers find it, unless another caller's is there.
    fn offer(&self, stretches: &[Stretch]) -> bool {
        let mut work = self.shared.lock();
        if work.is_taken {
            return false;
        }
        work.is_taken = true;
        let cut = |stretch: &Stretch| cut(*stretch, self.stretch_len);
        work.waiting.extend(stretches.iter().flat_map(cut));
        // The list is taken from its end.
        work.waiting.reverse();
        for _ in work.helpers..self.helpers_max {
            let shared = Arc::clone(&self.shared);
            let helper = thread::Builder::new().name("mesh-copy".into()).stack_size(STACK_LEN);
            // Without a helper the caller does the work.
            work.helpers += usize::from(helper.spawn(move || shared.help()).is_ok());
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
/// Most of the time of such a copy goes into getting the pages, so huge ones are asked for, and
/// from 8 MB on a second thread helps. It ends with the copy: there is nothing that a fork in
/// another thread could leave behind.
///
/// # Panics
/// When `to` is shorter than `from`.
pub fn copy_fresh(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert!(from.len() <= to.len(), "the target is long enough");
    advise_huge(to.as_mut_ptr_range());
    let threads = if from.len() < FRESH_SHARED_LEN_MIN { 1 } else { THREADS_MAX };
    // Two threads that touch one huge page for the first time would both clear one.
    let copier = Copier::with_stretches(threads, HUGE_LEN);
    let to = to.as_mut_ptr().cast();
    let stretch = Stretch { from: from.as_ptr(), to, len: from.len() };
    // SAFETY: both are borrowed until we return, `to` for us alone, and it is long enough.
    unsafe { copier.copy(&[stretch]) };
}

/// Appends bytes to memory that is new as far as it has room, as [`copy_fresh`] does.
pub fn extend_fresh(to: &mut Vec<u8>, from: &[u8]) {
    to.reserve(from.len());
    copy_fresh(from, to.spare_capacity_mut());
    // SAFETY: there was room for the bytes behind the old end, and they were just written.
    unsafe { to.set_len(to.len() + from.len()) };
}

/// How many cores there are; asked for once, since the answer takes longer than a small copy.
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

/// Pieces that end where the target's address is a multiple of `len`.
fn cut(stretch: Stretch, len: usize) -> impl Iterator<Item = Stretch> {
    let start = stretch.to.addr();
    let end = start + stretch.len;
    let first = (start / len * len..end).step_by(len);
    first.map(move |at| {
        let (from, to) = (at.max(start) - start, (at + len).min(end) - start);
        Stretch {
            from: stretch.from.wrapping_add(from),
            to: stretch.to.wrapping_add(from),
            len: to - from,
        }
    })
}
