//! Limits on the connections that the listeners of this process accept.
//!
//! A connection counts as unauthenticated until its peer has shown the secret of a handle. All
//! listeners share one [`ConnectionLimiter`], so a flood at one of them cannot take more
//! descriptors, memory or threads than an [`AdmissionPolicy`] grants to all of them together.

use crate::connection::socket::Socket;
use crate::domain::lock;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Unauthenticated connections at a time; each has a thread.
const UNAUTHENTICATED_MAX: u64 = 256;
/// Unauthenticated connections get at most one in this many of the descriptors of the process.
const UNAUTHENTICATED_SHARE: u64 = 8;
/// Connections at a time, with the authenticated ones.
const CONNECTIONS_MAX: u64 = 16_384;
/// How long a connection may take until it is authenticated.
const AUTHENTICATION_LIMIT: Duration = Duration::from_secs(5);

/// What the connections to this process may use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionPolicy {
    /// The most connections at a time, authenticated or not.
    pub(crate) connections_max: usize,
    /// The most of them that are not authenticated.
    pub(crate) unauthenticated_max: usize,
    /// The time from `accept` to the last byte of the proof.
    pub(crate) authentication_limit: Duration,
}

impl AdmissionPolicy {
    /// Leaves a quarter of the descriptors to the program itself.
    fn for_descriptors(descriptors_max: u64) -> Self {
        let part = |count: u64, max: u64| usize::try_from(count.clamp(1, max)).unwrap_or(1);
        Self {
            connections_max: part(descriptors_max / 4 * 3, CONNECTIONS_MAX),
            unauthenticated_max: part(descriptors_max / UNAUTHENTICATED_SHARE, UNAUTHENTICATED_MAX),
            authentication_limit: AUTHENTICATION_LIMIT,
        }
    }
}

impl Default for AdmissionPolicy {
    fn default() -> Self {
        Self::for_descriptors(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }
}

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It spoke no TLS where that is needed, or broke it off.
    NoTls,
    /// It did not know the secret, or spoke another language.
    NoSecret,
    /// It said nothing, or went away.
    Silent,
    /// It came over a local socket from a process of another user.
    OtherUser,
    /// It was closed to make room for a newer connection, or there was no room for it.
    Evicted,
}

/// How many connections were refused, by reason.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; 5]);

impl Refusals {
    pub(crate) fn count(&self, why: Refusal) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, why: Refusal) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// The listener that has accepted a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The local socket.
    Local,
    /// A TCP port.
    Tcp,
}

/// Admits connections within the limits of a policy.
#[derive(Debug, Default)]
pub(crate) struct ConnectionLimiter {
    policy: AdmissionPolicy,
    state: Mutex<State>,
    has_room: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The oldest first.
    unauthenticated: VecDeque<Unauthenticated>,
    authenticated_count: usize,
    next_number: u64,
}

#[derive(Debug)]
struct Unauthenticated {
    number: u64,
    origin: Origin,
    socket: Arc<Socket>,
    is_evicted: bool,
}

impl ConnectionLimiter {
    pub(crate) fn policy(&self) -> &AdmissionPolicy {
        &self.policy
    }

    /// Admits a connection. Where there is no room the oldest unauthenticated connection of the
    /// listener that has the most of them is closed, and this waits until its thread has ended.
    ///
    /// Returns nothing when authenticated connections take all the room.
    pub(crate) fn admit(self: &Arc<Self>, origin: Origin, socket: &Arc<Socket>) -> Option<Permit> {
        let mut state = lock(&self.state);
        loop {
            let count = state.unauthenticated.len();
            let is_full = count >= self.policy.unauthenticated_max
                || count + state.authenticated_count >= self.policy.connections_max;
            if !is_full {
                break;
            }
            if state.unauthenticated.is_empty() {
                return None;
            }
            state.evict();
            state = self.has_room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let number = state.next_number;
        state.next_number += 1;
        let socket = Arc::clone(socket);
        let entry = Unauthenticated { number, origin, socket, is_evicted: false };
        state.unauthenticated.push_back(entry);
        Some(Permit { limiter: Arc::clone(self), number, is_authenticated: false })
    }

    /// Closes the oldest unauthenticated connection, so that its descriptor becomes free.
    pub(crate) fn evict(&self) {
        lock(&self.state).evict();
    }
}

impl State {
    /// Closes a connection, unless one that was closed still has to end.
    fn evict(&mut self) {
        if self.unauthenticated.iter().any(|one| one.is_evicted) {
            return;
        }
        let count = |origin| self.unauthenticated.iter().filter(|one| one.origin == origin).count();
        let most =
            if count(Origin::Tcp) >= count(Origin::Local) { Origin::Tcp } else { Origin::Local };
        if let Some(oldest) = self.unauthenticated.iter_mut().find(|one| one.origin == most) {
            oldest.is_evicted = true;
            // Its thread wakes up, ends and drops the permit.
            oldest.socket.shut();
        }
    }
}

/// The right of one connection to exist, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    is_authenticated: bool,
}

impl Permit {
    /// Whether the connection was closed for want of room.
    pub(crate) fn is_evicted(&self) -> bool {
        let state = lock(&self.limiter.state);
        state.unauthenticated.iter().any(|one| one.number == self.number && one.is_evicted)
    }

    /// The peer has proved that it may connect: the connection is not evicted from now on.
    /// Returns whether that was in time.
    pub(crate) fn authenticate(&mut self) -> bool {
        let mut state = lock(&self.limiter.state);
        let found = state.unauthenticated.iter().position(|one| one.number == self.number);
        if let Some(at) = found.filter(|at| !state.unauthenticated[*at].is_evicted) {
            state.unauthenticated.remove(at);
            state.authenticated_count += 1;
            self.is_authenticated = true;
            drop(state);
            self.limiter.has_room.notify_all();
        }
        self.is_authenticated
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = lock(&self.limiter.state);
        if self.is_authenticated {
            state.authenticated_count -= 1;
        } else {
            state.unauthenticated.retain(|one| one.number != self.number);
        }
        drop(state);
        self.limiter.has_room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    fn limiter(connections_max: usize, unauthenticated_max: usize) -> Arc<ConnectionLimiter> {
        let authentication_limit = Duration::from_secs(5);
        let policy = AdmissionPolicy { connections_max, unauthenticated_max, authentication_limit };
        Arc::new(ConnectionLimiter { policy, ..ConnectionLimiter::default() })
    }

    fn connection() -> (UnixStream, Arc<Socket>) {
        let (peer, ours) = UnixStream::pair().expect("two sockets");
        (peer, Arc::new(Socket::open(OwnedFd::from(ours))))
    }

    /// Ends as the thread of an unauthenticated connection does: when its socket is shut.
    fn until_shut(mut peer: UnixStream, permit: Permit) -> thread::JoinHandle<bool> {
        thread::spawn(move || {
            let read = peer.read(&mut [0]).expect("an end is no error");
            assert_eq!(read, 0);
            permit.is_evicted()
        })
    }

    #[test]
    fn the_oldest_unauthenticated_connection_makes_room_for_a_new_one() {
        let limiter = limiter(9, 2);
        let (first_peer, first) = connection();
        let first = until_shut(first_peer, limiter.admit(Origin::Tcp, &first).expect("room"));
        let (_second_peer, second) = connection();
        let second = limiter.admit(Origin::Tcp, &second).expect("room");
        let (_third_peer, third) = connection();
        let third = limiter.admit(Origin::Tcp, &third).expect("room");
        assert!(first.join().expect("it ends"), "the oldest one is evicted");
        assert!(!second.is_evicted() && !third.is_evicted());
    }

    #[test]
    fn a_flood_at_one_listener_evicts_its_own_connections() {
        let limiter = limiter(9, 3);
        let (_local_peer, local) = connection();
        let local = limiter.admit(Origin::Local, &local).expect("room");
        let mut flood = Vec::new();
        for _ in 0..20 {
            let (peer, socket) = connection();
            let permit = limiter.admit(Origin::Tcp, &socket).expect("room");
            flood.push((until_shut(peer, permit), socket));
        }
        assert!(!local.is_evicted());
        for (ended, socket) in flood {
            socket.shut();
            let _ = ended.join().expect("it ends");
        }
    }

    #[test]
    fn an_authenticated_connection_is_never_evicted() {
        let limiter = limiter(2, 2);
        let (_first_peer, first) = connection();
        let mut first = limiter.admit(Origin::Tcp, &first).expect("room");
        assert!(first.authenticate());
        let (peer, second) = connection();
        let second = until_shut(peer, limiter.admit(Origin::Tcp, &second).expect("room"));
        let (_third_peer, third) = connection();
        let mut third = limiter.admit(Origin::Tcp, &third).expect("room");
        assert!(second.join().expect("it ends"));
        assert!(third.authenticate());
        let (_fourth_peer, fourth) = connection();
        assert!(limiter.admit(Origin::Tcp, &fourth).is_none(), "all room is taken by peers");
        drop(first);
        assert!(limiter.admit(Origin::Tcp, &fourth).is_some());
    }

    #[test]
    fn an_evicted_connection_cannot_authenticate_any_more() {
        let limiter = limiter(9, 1);
        let (_peer, socket) = connection();
        let mut permit = limiter.admit(Origin::Local, &socket).expect("room");
        limiter.evict();
        assert!(!permit.authenticate());
    }

    #[test]
    fn the_program_keeps_a_quarter_of_the_descriptors() {
        let policy = AdmissionPolicy::for_descriptors(1024);
        assert_eq!((policy.connections_max, policy.unauthenticated_max), (768, 128));
        let unlimited = AdmissionPolicy::for_descriptors(u64::MAX);
        assert_eq!((unlimited.connections_max, unlimited.unauthenticated_max), (16_384, 256));
    }
}
