//! Reconnection to a process that closed a connection before it replied.
//!
//! A listener that is flooded evicts unauthenticated connections, and a connection of a legitimate
//! client may be one of them.

use crate::connection::blocking_io::SocketError;
use crate::stop::Stop;
use std::thread;
use std::time::Duration;

/// The maximum number of attempts; the pauses between them add up to half a second.
const ATTEMPTS_MAX: u32 = 9;
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// The attempts to open one connection.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    failed_count: u32,
}

impl Retries {
    /// Waits before the next attempt, after an attempt that failed with `error`.
    ///
    /// # Errors
    /// Returns `error` if another attempt would not help, or the reason why `stop` ends the
    /// attempts.
    pub(crate) fn wait(&mut self, error: SocketError, stop: &Stop) -> Result<(), SocketError> {
        self.failed_count += 1;
        if !matches!(error, SocketError::Closed) || self.failed_count >= ATTEMPTS_MAX {
            return Err(error);
        }
        thread::sleep(PAUSE_MIN * (1 << (self.failed_count - 1)));
        stop.check_waiting().map_err(SocketError::Stopped)
    }
}

/// Calls `attempt` until it succeeds, or fails for a reason other than a closed connection.
pub(crate) fn with_retries<T>(
    stop: &Stop,
    mut attempt: impl FnMut() -> Result<T, SocketError>,
) -> Result<T, SocketError> {
    let mut retries = Retries::default();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => retries.wait(error, stop)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_connection_is_retried_a_limited_number_of_times() {
        let stop = Stop::after(None);
        let mut count = 0;
        let connected = with_retries(&stop, || {
            count += 1;
            if count < 3 { Err(SocketError::Closed) } else { Ok(count) }
        });
        assert_eq!(connected.expect("the third attempt succeeds"), 3);
        let mut count = 0;
        let failed = with_retries(&stop, || {
            count += 1;
            Err::<(), _>(SocketError::Closed)
        });
        assert!(failed.is_err());
        assert_eq!(count, ATTEMPTS_MAX);
    }

    #[test]
    fn other_errors_are_not_retried() {
        let mut count = 0;
        let failed = with_retries(&Stop::after(None), || {
            count += 1;
            Err::<(), _>(SocketError::Strange)
        });
        assert!(failed.is_err());
        assert_eq!(count, 1);
    }
}
