//! What the engine does while the process has no descriptors left.
//!
//! Nothing is lost: peers that call wait to be accepted, and a link that could not take a
//! descriptor is closed, so that its session sends everything again on the next one.

use super::Engine;
use super::poller::LISTENER;
use super::wire::lock;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io;
use std::time::{Duration, Instant};

/// How long nothing is accepted or dialled after the kernel had no descriptor to give.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// Whether a call failed because the process or the machine has no descriptors left.
fn is_shortage(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl Engine {
    /// Pauses `accept` and dialling if `error` is a shortage; returns whether it is.
    pub(super) fn note_shortage(&self, error: &io::Error) -> bool {
        if !is_shortage(error) {
            return false;
        }
        let mut shared = lock(&self.shared);
        let is_first = shared.shortage_ends_at.is_none();
        shared.shortage_ends_at = Some(Instant::now() + SHORTAGE_PAUSE);
        drop(shared);
        if is_first && let Some(listener) = self.listener.get() {
            // Peers that wait to be accepted would wake the IO thread again at once.
            let _ = epoll::delete(&self.io.epoll, listener);
        }
        self.io.bell.ring();
        true
    }

    /// Whether nothing should be opened now.
    pub(super) fn is_short(&self) -> bool {
        lock(&self.shared).shortage_ends_at.is_some()
    }

    /// Listens again if the pause is over; returns when it will be.
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
            // The kernel has no memory for it: after another pause it may have.
            let ends_at = now + SHORTAGE_PAUSE;
            lock(&self.shared).shortage_ends_at = Some(ends_at);
            return Some(ends_at);
        }
        None
    }
}
