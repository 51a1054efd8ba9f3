//! A thread that is woken once a time is over, and not before: setting it again wakes nobody.

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

/// Calls back from its own thread when the time is over that it was set to last, unless all that
/// it was set for has happened before.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Arc<OwnedFd>,
    /// How much it was set for that has not happened.
    expected: AtomicUsize,
}

impl Alarm {
    /// One that is not set yet; it ends when `ring` says that nobody wants it any more.
    pub(crate) fn new(
        name: &str,
        mut ring: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let waited = Arc::clone(&timer);
        let run = move || {
            let mut expirations = [0; 8];
            loop {
                match read(&*waited, &mut expirations) {
                    Err(rustix::io::Errno::INTR) => {}
                    Ok(_) if ring() => {}
                    _ => return,
                }
            }
        };
        thread::Builder::new().name(name.into()).stack_size(STACK_LEN).spawn(run)?;
        Ok(Self { timer, expected: AtomicUsize::new(0) })
    }

    /// Expects one thing more, and has it ring after this time; what it was set to before no
    /// longer counts.
    pub(crate) fn expect(&self, within: Duration) -> io::Result<()> {
        self.expected.fetch_add(1, Ordering::AcqRel);
        self.set(within)
    }

    /// One of the things that were expected has happened.
    pub(crate) fn happened(&self) {
        if self.expected.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _ = self.set(Duration::ZERO);
            // What another thread has expected meanwhile is not to be forgotten by this.
            if self.expected.load(Ordering::Acquire) > 0 {
                self.ring();
            }
        }
    }

    /// Has it ring now.
    pub(crate) fn ring(&self) {
        let _ = self.set(Duration::from_nanos(1));
    }

    /// No time at all is never.
    fn set(&self, after: Duration) -> io::Result<()> {
        let value = Timespec::try_from(after).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value: value };
        timerfd_settime(&*self.timer, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // Its thread looks whether it is still wanted.
        self.ring();
    }
}
