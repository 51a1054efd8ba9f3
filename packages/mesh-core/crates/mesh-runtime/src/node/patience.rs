//! How long what has been collected waits for what is missing.

use std::time::Duration;

/// The longest that something waits from when the time is told next.
const COLLECT: Duration = Duration::from_millis(2);

/// Since when something waits, if anything does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Patience {
    /// Nothing waits.
    #[default]
    Idle,
    /// Something waits since the time was told.
    Untimed,
    /// It goes on then.
    Until(Duration),
}

impl Patience {
    /// Something waits, from now on or for longer.
    pub(super) fn begin(&mut self) {
        if *self == Self::Idle {
            *self = Self::Untimed;
        }
    }

    /// Nothing waits any more.
    pub(super) fn end(&mut self) {
        *self = Self::Idle;
    }

    /// Whether something waits since the time was told.
    pub(super) fn is_untimed(self) -> bool {
        self == Self::Untimed
    }

    /// When the time is to be told, at the latest.
    pub(super) fn next_due(self) -> Option<Duration> {
        match self {
            Self::Idle => None,
            Self::Untimed => Some(Duration::ZERO),
            Self::Until(due) => Some(due),
        }
    }

    /// Lets time pass; `true` when what waits is to go on, and then nothing waits.
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
