//! The epoll set on which a thread that reads connections sleeps.

use super::parker::{Waker, timespec};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// Token of the waker in an epoll set.
pub(super) const WAKER: u64 = u64::MAX;
/// Token of the listener.
pub(super) const LISTENER: u64 = u64::MAX - 1;
/// Flag of the token of a socket that waits to be writable.
pub(super) const WRITABLE: u64 = 1 << 62;
/// Maximum number of events per system call.
const EVENTS_MAX: usize = 64;

/// An epoll set and its waker.
pub(super) struct Poller {
    pub(super) epoll: OwnedFd,
    pub(super) waker: Arc<Waker>,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = Arc::new(Waker::new()?);
        epoll::add(&epoll, waker.as_fd(), epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        Ok(Self { epoll, waker })
    }

    pub(super) fn add(&self, source: impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), flags)?)
    }

    /// Sleeps until an event arrives; returns the tokens.
    pub(super) fn sleep(&self, left: Option<Duration>, tokens: &mut Vec<u64>) -> Result<(), Errno> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let left = left.map(timespec);
        let (events, _) = epoll::wait(&self.epoll, &mut events, left.as_ref())?;
        tokens.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}
