//! The timer that limits how long collected items wait for the missing ones.

use std::time::Duration;

/// The maximum wait, counted from the next time that [`BatchTimer::is_over`] is called.
const COLLECT: Duration = Duration::from_millis(2);

/// The state of the timer: since when something waits, if anything does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum BatchTimer {
    /// Nothing waits.
    #[default]
    Idle,
    /// Something started to wait after the time was last advanced.
    Untimed,
    /// The wait ends at this time.
    Until(Duration),
}

impl BatchTimer {
    /// Starts the timer unless it runs already.
    pub(super) fn begin(&mut self) {
        if *self == Self::Idle {
            *self = Self::Untimed;
        }
    }

    /// Stops the timer.
    pub(super) fn end(&mut self) {
        *self = Self::Idle;
    }

    /// Whether something started to wait after the time was last advanced.
    pub(super) fn is_untimed(self) -> bool {
        self == Self::Untimed
    }

    /// Returns the latest time at which the time has to be advanced.
    pub(super) fn next_due(self) -> Option<Duration> {
        match self {
            Self::Idle => None,
            Self::Untimed => Some(Duration::ZERO),
            Self::Until(due) => Some(due),
        }
    }

    /// Advances the time. Returns `true` and stops the timer if the wait is over.
    pub(super) fn is_over(&mut self, now: Duration) -> bool {
        match *self {
            Self::Untimed => *self = Self::Until(now + COLLECT),
            Self::Until(due) if due <= now => {
                self.end();
                return true;
            }
            _ => {}
        }
        false
    }
}
