//! A timer with a thread that wakes only on expiration: setting the timer again wakes no thread.

use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const STACK_LEN: usize = 256 << 10;

/// Calls a function in a separate thread when the timer expires, unless all expected events have
/// occurred by then.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: Arc<OwnedFd>,
    /// The number of expected events that have not occurred.
    expected: AtomicUsize,
}

impl Timer {
    /// A timer that is not set; its thread exits when `fire` returns false.
    pub(crate) fn new(
        name: &str,
        mut fire: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC;
        let fd = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let waited = Arc::clone(&fd);
        let run = move || {
            let mut expirations = [0; 8];
            loop {
                match read(&*waited, &mut expirations) {
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(_) if fire() => {}
                    _ => return,
                }
            }
        };
        thread::Builder::new().name(name.into()).stack_size(STACK_LEN).spawn(run)?;
        Ok(Self { fd, expected: AtomicUsize::new(0) })
    }

    /// Expects one more event, and sets the timer to this duration, which replaces the previous
    /// one.
    pub(crate) fn expect(&self, within: Duration) -> io::Result<()> {
        self.expected.fetch_add(1, Ordering::AcqRel);
        self.set(within)
    }

    /// Records that one of the expected events has occurred.
    pub(crate) fn occurred(&self) {
        if self.expected.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.set(Duration::ZERO);
            // Another thread may have set the timer concurrently; its event must not be lost.
            if self.expected.load(Ordering::Acquire) > 0 {
                self.fire();
            }
        }
    }

    /// Makes the timer expire immediately.
    pub(crate) fn fire(&self) {
        let _ = self.set(Duration::from_nanos(1));
    }

    /// Sets the timer; zero disables it.
    fn set(&self, after: Duration) -> io::Result<()> {
        let value = Timespec::try_from(after).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(&*self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // The thread then checks whether it is still needed.
        self.fire();
    }
}
