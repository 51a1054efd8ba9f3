//! Where one thread sleeps, and how any other wakes it.
//!
//! A thread sleeps either on a futex or, when it leads, in `epoll_wait` on the links themselves;
//! who wakes it need not know which.

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Awake, nothing to report.
const AWAKE: u32 = 0;
/// Woken: the next sleep returns at once.
const NOTIFIED: u32 = 1;
/// Asleep on the futex.
const PARKED: u32 = 2;
/// Asleep in `epoll_wait` as the leader.
const LEADING: u32 = 3;

/// Why a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Someone called [`Parker::unpark`].
    Notified,
    /// The time is over.
    TimedOut,
    /// A signal handler ran in this thread.
    Interrupted,
    /// The leader has woken other threads, and should let them lead.
    HandedOver,
}

/// The bed of one thread.
#[derive(Debug)]
pub struct Parker {
    state: AtomicU32,
    /// Wakes whoever leads; the same for all parkers of an engine.
    lead_bell: Arc<Bell>,
    /// Signals are for the first thread of a process.
    takes_signals: bool,
}

impl Parker {
    /// A parker for the calling thread.
    pub fn new(lead_bell: Arc<Bell>) -> Self {
        let takes_signals = rustix::thread::gettid() == rustix::process::getpid();
        Self { state: AtomicU32::new(AWAKE), lead_bell, takes_signals }
    }

    /// Whether signal handlers run in this thread.
    pub fn takes_signals(&self) -> bool {
        self.takes_signals
    }

    /// Wakes the thread now, or as soon as it wants to sleep.
    pub fn unpark(&self) {
        match self.state.swap(NOTIFIED, Ordering::SeqCst) {
            PARKED => {
                // Failing means that nobody sleeps there any more.
                let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
            }
            LEADING => self.lead_bell.ring(),
            _ => {}
        }
    }

    /// Sleeps on the futex.
    pub fn park(&self, until: Option<Instant>) -> Wake {
        if !self.lie_down(PARKED) {
            return Wake::Notified;
        }
        let left = until.map(|until| timespec(until.saturating_duration_since(Instant::now())));
        let slept = futex::wait(&self.state, futex::Flags::PRIVATE, PARKED, left.as_ref());
        if self.get_up() {
            return Wake::Notified;
        }
        match slept {
            Err(Errno::INTR) => Wake::Interrupted,
            Err(Errno::TIMEDOUT) => Wake::TimedOut,
            // Spurious: the caller looks again.
            _ => Wake::Notified,
        }
    }

    /// Marks the thread as the leader about to sleep; false when it was woken already.
    pub(super) fn lead(&self) -> bool {
        self.lie_down(LEADING)
    }

    /// Marks the thread as awake; true when someone woke it.
    pub(super) fn get_up(&self) -> bool {
        self.state.swap(AWAKE, Ordering::SeqCst) == NOTIFIED
    }

    fn lie_down(&self, how: u32) -> bool {
        let before = self.state.compare_exchange(AWAKE, how, Ordering::SeqCst, Ordering::SeqCst);
        if before.is_err() {
            self.state.store(AWAKE, Ordering::SeqCst);
        }
        before.is_ok()
    }
}

/// A descriptor that becomes readable when rung.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // Whoever has to know uses `try_ring`.
        let _ = self.try_ring();
    }

    /// As [`Bell::ring`].
    ///
    /// # Errors
    /// When the descriptor is no bell any more, because other code has closed it.
    pub fn try_ring(&self) -> Result<(), Errno> {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // A counter that is full is readable all the same.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Makes the descriptor silent again.
    pub fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The kernel's form of a duration.
pub(super) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
