//! Behaviour of the engine while the process has no descriptors left.
//!
//! Nothing is lost: peers that connect wait to be accepted, and a connection that could not receive
//! a descriptor is closed, so that its session retransmits everything on the next one.

use super::Engine;
use super::poller::LISTENER;
use super::wire::lock;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How long no connection is accepted or opened after the kernel had no descriptor left.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Whether a system call failed because the process or the machine has no descriptors left.
fn is_shortage(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl Engine {
    /// Pauses accepting and connecting if `error` is a shortage; returns whether it is.
    pub(super) fn note_shortage(&self, error: &io::Error) -> bool {
        if !is_shortage(error) {
            return false;
        }
        let mut shared = lock(&self.shared);
        let is_first = shared.shortage_ends_at.is_none();
        shared.shortage_ends_at = Some(Instant::now() + SHORTAGE_PAUSE);
        drop(shared);
        if is_first && let Some(listener) = self.listener.get() {
            // Pending connections would wake the IO thread again immediately.
            let _ = epoll::delete(&self.io.epoll, listener);
        }
        self.io.waker.wake();
        true
    }

    /// Whether no descriptor should be opened now.
    pub(super) fn is_short(&self) -> bool {
        lock(&self.shared).shortage_ends_at.is_some()
    }

    /// Listens again if the pause is over; otherwise returns its end.
    pub(super) fn end_shortage(&self, now: Instant) -> Option<Instant> {
        let mut shared = lock(&self.shared);
        let ends_at = shared.shortage_ends_at?;
        if ends_at > now {
            return Some(ends_at);
        }
        shared.shortage_ends_at = None;
        drop(shared);
        if let Some(listener) = self.listener.get()
            && self.io.add(listener, LISTENER).is_err()
        {
            // The kernel has no memory for the registration; retry after another pause.
            let ends_at = now + SHORTAGE_PAUSE;
            lock(&self.shared).shortage_ends_at = Some(ends_at);
            return Some(ends_at);
        }
        None
    }
}
