//! When a transfer has to end before it is done.

use crate::error::DataError;
use std::cell::RefCell;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{Duration, Instant};

const RUNNING: u8 = 0;
const CANCELLED: u8 = 1;
const FAILED: u8 = 2;

thread_local! {
    /// Asked while this thread waits for another process: whether somebody wants it to end.
    static INTERRUPT: RefCell<Option<fn() -> bool>> = const { RefCell::new(None) };
}

/// Runs something in this thread that ends early, as cancelled, when `is_wanted` says so.
pub fn interruptible<T>(is_wanted: fn() -> bool, run: impl FnOnce() -> T) -> T {
    INTERRUPT.with_borrow_mut(|hook| *hook = Some(is_wanted));
    let result = run();
    INTERRUPT.with_borrow_mut(|hook| *hook = None);
    result
}

/// Asked between two chunks, by each thread that works on a transfer.
#[derive(Debug)]
pub struct Stop {
    until: Option<Instant>,
    state: AtomicU8,
}

impl Stop {
    /// A transfer that may take `limit`, from now on; none is no limit.
    pub fn after(limit: Option<Duration>) -> Self {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        Self { until, state: AtomicU8::new(RUNNING) }
    }

    /// Fails when it is time to end.
    ///
    /// # Errors
    /// Why: [`DataError::Deadline`] or [`DataError::Cancelled`].
    pub fn check(&self) -> Result<(), DataError> {
        // What another piece has failed with is what the caller hears; this one just ends.
        if self.state.load(Acquire) != RUNNING {
            return Err(DataError::Cancelled);
        }
        match self.until {
            Some(until) if Instant::now() >= until => Err(DataError::Deadline),
            _ => Ok(()),
        }
    }

    /// As [`Stop::check`], for a thread that waits; asks the thread's own interrupt too.
    pub(crate) fn check_waiting(&self) -> Result<(), DataError> {
        let is_wanted = INTERRUPT.with_borrow(|hook| hook.is_some_and(|hook| hook()));
        if is_wanted {
            self.cancel();
        }
        self.check()
    }

    /// How much time is left, if there is a limit.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// The caller has given up; tells whether it is the first to end this.
    pub fn cancel(&self) -> bool {
        self.state.compare_exchange(RUNNING, CANCELLED, AcqRel, Acquire).is_ok()
    }

    /// Whether the caller has given up.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.load(Acquire) == CANCELLED
    }

    /// A piece has failed.
    pub(crate) fn fail(&self) {
        let _ = self.state.compare_exchange(RUNNING, FAILED, AcqRel, Acquire);
    }
}
