//! Copies of large payloads, shared between the caller and a thread that helps.
//!
//! One core does not use all of a machine's memory bandwidth, and while a payload is copied the
//! processes that wait for it are idle. The caller never waits for a helper to begin: both take
//! stretches off the same list, so on a busy machine the caller simply does them all.
#![expect(unsafe_code, reason = "copies between raw addresses on two threads")]

use std::ptr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// Copies shorter than this are made by the caller alone: to wake a thread takes as long.
const SHARED_LEN_MIN: usize = 4 << 20;
/// How much is copied between two looks at the list.
const STRETCH_LEN: usize = 512 << 10;
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
    /// The process that has the helpers; in a fork of it one may seem to hold the lock for ever.
    pid: u32,
}

impl Copier {
    /// A copier that uses at most `threads_max` threads, the caller's among them.
    pub(super) fn new(threads_max: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let helpers_max = threads_max.min(cores).saturating_sub(1);
        Self { shared: Arc::default(), helpers_max, pid: std::process::id() }
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
        work.waiting.extend(stretches.iter().flat_map(|stretch| cut(*stretch)));
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

fn cut(stretch: Stretch) -> impl Iterator<Item = Stretch> {
    (0..stretch.len).step_by(STRETCH_LEN).map(move |at| Stretch {
        from: stretch.from.wrapping_add(at),
        to: stretch.to.wrapping_add(at),
        len: STRETCH_LEN.min(stretch.len - at),
    })
}
