//! The primitive on which one thread sleeps, and by which other threads wake it.
//!
//! A thread sleeps either on a futex or, as the leader, in `epoll_wait` on the connections. A
//! thread that wakes it need not know which.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Awake, without a notification.
const AWAKE: u32 = 0;
/// Notified: the next sleep returns immediately.
const NOTIFIED: u32 = 1;
/// Asleep on the futex.
const PARKED: u32 = 2;
/// Asleep in `epoll_wait` as the leader.
const LEADING: u32 = 3;

/// The reason why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Another thread called [`Parker::unpark`].
    Notified,
    /// The time is over.
    TimedOut,
    /// A signal handler ran in this thread.
    Interrupted,
    /// The leader has woken other threads, and should let them lead.
    HandedOver,
}

/// The sleep state of one thread.
#[derive(Debug)]
pub struct Parker {
    state: AtomicU32,
    /// Wakes the leader; shared by all parkers of an engine.
    leader_waker: Arc<Waker>,
    /// Only the first thread of a process handles signals.
    takes_signals: bool,
}

impl Parker {
    /// Creates a parker for the calling thread.
    pub fn new(leader_waker: Arc<Waker>) -> Self {
        let takes_signals = rustix::thread::gettid() == rustix::process::getpid();
        Self { state: AtomicU32::new(AWAKE), leader_waker, takes_signals }
    }

    /// Whether signal handlers run in this thread.
    pub fn takes_signals(&self) -> bool {
        self.takes_signals
    }

    /// Wakes the thread now, or when it next sleeps.
    pub fn unpark(&self) {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            PARKED => {
                // A failure means that the thread no longer sleeps.
                let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
            }
            LEADING => self.leader_waker.wake(),
            _ => {}
        }
    }

    /// Sleeps on the futex.
    pub fn park(&self, until: Option<Instant>) -> Wake {
        if !self.begin_sleep(PARKED) {
            return Wake::Notified;
        }
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let slept = futex::wait(&self.state, futex::Flags::PRIVATE, PARKED, left.as_ref());
        if self.end_sleep() {
            return Wake::Notified;
        }
        match slept {
            Err(Errno::INTR) => Wake::Interrupted,
            Err(Errno::TIMEDOUT) => Wake::TimedOut,
            // This may be spurious: the caller checks again.
            _ => Wake::Notified,
        }
    }

    /// Marks the thread as the leader that is about to sleep.
    ///
    /// Returns `false` if the thread was notified already.
    pub(super) fn lead(&self) -> bool {
        self.begin_sleep(LEADING)
    }

    /// Marks the thread as awake; returns `true` if it was notified.
    pub(super) fn end_sleep(&self) -> bool {
        self.state.swap(AWAKE, Ordering::SeqCst) == NOTIFIED
    }

    fn begin_sleep(&self, how: u32) -> bool {
        let before = self.state.compare_exchange(AWAKE, how, Ordering::SeqCst, Ordering::SeqCst);
        if before.is_err() {
            self.state.store(AWAKE, Ordering::SeqCst);
        }
        before.is_ok()
    }
}

/// A waker: an eventfd that becomes readable by [`Waker::wake`].
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates a waker whose descriptor is not readable.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // Callers that need the error use `try_wake`.
        let _ = self.try_wake();
    }

    /// Like [`Waker::wake`], but reports errors.
    ///
    /// # Errors
    /// If the descriptor is no longer an eventfd, because other code has closed it.
    pub fn try_wake(&self) -> Result<(), Errno> {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // A counter at its maximum is readable, too.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the descriptor unreadable again.
    pub fn reset(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Converts a duration to the kernel's format.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
