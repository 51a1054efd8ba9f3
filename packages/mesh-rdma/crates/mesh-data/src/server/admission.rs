//! Limits on the connections that the listeners of this process accept.
//!
//! A connection counts as unauthenticated until its peer has presented the secret of a handle. All
//! listeners share one [`ConnectionLimiter`], so a flood on one of them cannot use more
//! descriptors, memory or threads than an [`AdmissionPolicy`] grants to all of them together.

use crate::connection::socket::Socket;
use crate::domain::lock;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The maximum number of unauthenticated connections; each has a thread.
const UNAUTHENTICATED_MAX: u64 = 256;
/// Unauthenticated connections use at most one in this many descriptors of the process.
const UNAUTHENTICATED_SHARE: u64 = 8;
/// The maximum number of connections, including authenticated ones.
const CONNECTIONS_MAX: u64 = 16_384;
/// The time limit for the authentication of a connection.
const AUTHENTICATION_LIMIT: Duration = Duration::from_secs(5);

/// The limits for connections to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionPolicy {
    /// The maximum number of connections, authenticated or not.
    pub(crate) connections_max: usize,
    /// The maximum number of unauthenticated connections.
    pub(crate) unauthenticated_max: usize,
    /// The time limit from `accept` to the last byte of the proof.
    pub(crate) authentication_limit: Duration,
}

impl AdmissionPolicy {
    /// A policy that leaves a quarter of the descriptors to the program.
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

/// The reason why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The peer did not use TLS where it is required, or aborted the handshake.
    NoTls,
    /// The peer did not know the secret, or used another protocol.
    NoSecret,
    /// The peer sent nothing in time, or closed the connection.
    Silent,
    /// The peer of a local socket was a process of another user.
    OtherUser,
    /// The connection was closed in favor of a newer one, or because of a limit.
    Evicted,
}

/// The number of refused connections, by reason.
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

/// The type of the listener that accepted a connection.
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
    has_capacity: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The unauthenticated connections, oldest first.
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

    /// Admits a connection. If a limit is reached, it closes the oldest unauthenticated connection
    /// of the type of listener that has the most of them, and waits until the thread of that
    /// connection has ended.
    ///
    /// Returns `None` if authenticated connections use up the limit.
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
            state = self.has_capacity.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let number = state.next_number;
        state.next_number += 1;
        let socket = Arc::clone(socket);
        let entry = Unauthenticated { number, origin, socket, is_evicted: false };
        state.unauthenticated.push_back(entry);
        Some(Permit { limiter: Arc::clone(self), number, is_authenticated: false })
    }

    /// Closes the oldest unauthenticated connection, which frees its descriptor.
    pub(crate) fn evict(&self) {
        lock(&self.state).evict();
    }
}

impl State {
    /// Closes a connection, unless a previously closed one has not ended yet.
    fn evict(&mut self) {
        if self.unauthenticated.iter().any(|one| one.is_evicted) {
            return;
        }
        let count = |origin| self.unauthenticated.iter().filter(|one| one.origin == origin).count();
        let most =
            if count(Origin::Tcp) >= count(Origin::Local) { Origin::Tcp } else { Origin::Local };
        if let Some(oldest) = self.unauthenticated.iter_mut().find(|one| one.origin == most) {
            oldest.is_evicted = true;
            // Its thread wakes up, exits and drops the permit.
            oldest.socket.shut();
        }
    }
}

/// The permission of one connection to exist, until it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    is_authenticated: bool,
}

impl Permit {
    /// Whether the connection was closed because a limit was reached.
    pub(crate) fn is_evicted(&self) -> bool {
        let state = lock(&self.limiter.state);
        state.unauthenticated.iter().any(|one| one.number == self.number && one.is_evicted)
    }

    /// Marks the connection as authenticated, which protects it from eviction. Returns false if it
    /// has already been evicted.
    pub(crate) fn authenticate(&mut self) -> bool {
        let mut state = lock(&self.limiter.state);
        let found = state.unauthenticated.iter().position(|one| one.number == self.number);
        if let Some(at) = found.filter(|at| !state.unauthenticated[*at].is_evicted) {
            state.unauthenticated.remove(at);
            state.authenticated_count += 1;
            self.is_authenticated = true;
            drop(state);
            self.limiter.has_capacity.notify_all();
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
        self.limiter.has_capacity.notify_all();
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

    /// Ends when the socket is shut down, like the thread of an unauthenticated connection.
    fn until_shut(mut peer: UnixStream, permit: Permit) -> thread::JoinHandle<bool> {
        thread::spawn(move || {
            let read = peer.read(&mut [0]).expect("an end is no error");
            assert_eq!(read, 0);
            permit.is_evicted()
        })
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted_for_a_new_one() {
        let limiter = limiter(9, 2);
        let (first_peer, first) = connection();
        let first = until_shut(first_peer, limiter.admit(Origin::Tcp, &first).expect("a permit"));
        let (_second_peer, second) = connection();
        let second = limiter.admit(Origin::Tcp, &second).expect("a permit");
        let (_third_peer, third) = connection();
        let third = limiter.admit(Origin::Tcp, &third).expect("a permit");
        assert!(first.join().expect("it ends"), "the oldest one is evicted");
        assert!(!second.is_evicted() && !third.is_evicted());
    }

    #[test]
    fn a_flood_at_one_listener_evicts_its_own_connections() {
        let limiter = limiter(9, 3);
        let (_local_peer, local) = connection();
        let local = limiter.admit(Origin::Local, &local).expect("a permit");
        let mut flood = Vec::new();
        for _ in 0..20 {
            let (peer, socket) = connection();
            let permit = limiter.admit(Origin::Tcp, &socket).expect("a permit");
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
        let mut first = limiter.admit(Origin::Tcp, &first).expect("a permit");
        assert!(first.authenticate());
        let (peer, second) = connection();
        let second = until_shut(peer, limiter.admit(Origin::Tcp, &second).expect("a permit"));
        let (_third_peer, third) = connection();
        let mut third = limiter.admit(Origin::Tcp, &third).expect("a permit");
        assert!(second.join().expect("it ends"));
        assert!(third.authenticate());
        let (_fourth_peer, fourth) = connection();
        assert!(limiter.admit(Origin::Tcp, &fourth).is_none(), "peers use up the limit");
        drop(first);
        assert!(limiter.admit(Origin::Tcp, &fourth).is_some());
    }

    #[test]
    fn an_evicted_connection_cannot_authenticate_any_more() {
        let limiter = limiter(9, 1);
        let (_peer, socket) = connection();
        let mut permit = limiter.admit(Origin::Local, &socket).expect("a permit");
        limiter.evict();
        assert!(!permit.authenticate());
    }

    #[test]
    fn a_quarter_of_the_descriptors_is_reserved_for_the_process() {
        let policy = AdmissionPolicy::for_descriptors(1024);
        assert_eq!((policy.connections_max, policy.unauthenticated_max), (768, 128));
        let unlimited = AdmissionPolicy::for_descriptors(u64::MAX);
        assert_eq!((unlimited.connections_max, unlimited.unauthenticated_max), (16_384, 256));
    }
}
