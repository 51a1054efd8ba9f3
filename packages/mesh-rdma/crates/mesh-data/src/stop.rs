//! Conditions that end a transfer before it is complete.

use crate::error::DataError;
use std::cell::RefCell;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

const RUNNING: u8 = 0;
const CANCELLED: u8 = 1;
const FAILED: u8 = 2;

thread_local! {
    /// Called while this thread waits for another process; returns whether the wait is to be
    /// interrupted.
    static INTERRUPT: RefCell<Option<fn() -> bool>> = const { RefCell::new(None) };
}

/// Runs a function in this thread, whose waits are cancelled when `is_wanted` returns true.
pub fn interruptible<T>(is_wanted: fn() -> bool, run: impl FnOnce() -> T) -> T {
    INTERRUPT.with_borrow_mut(|hook| *hook = Some(is_wanted));
    let result = run();
    INTERRUPT.with_borrow_mut(|hook| *hook = None);
    result
}

/// The deadline and the cancellation state of a transfer, which its threads check between chunks.
#[derive(Debug)]
pub struct Stop {
    until: Option<Instant>,
    state: AtomicU8,
}

impl Stop {
    /// A transfer with a time limit that starts now; `None` means no limit.
    pub fn after(limit: Option<Duration>) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { until, state: AtomicU8::new(RUNNING) }
    }

    /// Fails if the transfer must end.
    ///
    /// # Errors
    /// The reason: [`DataError::Deadline`] or [`DataError::Cancelled`].
    pub fn check(&self) -> Result<(), DataError> {
        // The caller receives the error of the piece that failed; this piece only has to end.
        if self.state.load(Acquire) != RUNNING {
            return Err(DataError::Cancelled);
        }
        match self.until {
            Some(until) if Instant::now() >= until => Err(DataError::Deadline),
            _ => Ok(()),
        }
    }

    /// Like [`Stop::check`], but called by a waiting thread: it also checks the interrupt of the
    /// thread.
    pub(crate) fn check_waiting(&self) -> Result<(), DataError> {
        let is_wanted = INTERRUPT.with_borrow(|hook| hook.is_some_and(|hook| hook()));
        if is_wanted {
            self.cancel();
        }
        self.check()
    }

    /// The remaining time, if there is a limit.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// Cancels the transfer; returns whether this call was the first to end it.
    pub fn cancel(&self) -> bool {
        self.state.compare_exchange(RUNNING, CANCELLED, AcqRel, Acquire).is_ok()
    }

    /// Whether the caller has cancelled the transfer.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.load(Acquire) == CANCELLED
    }

    /// Records that a piece has failed.
    pub(crate) fn fail(&self) {
        let _ = self.state.compare_exchange(RUNNING, FAILED, AcqRel, Acquire);
    }
}
