//! Pending connections, and the choice of one to close if there are too many.
//!
//! Authenticated peers keep their connection while unauthenticated ones exist. Of the
//! unauthenticated ones, the oldest one from the most frequent origin is closed. A client that
//! floods the listener from one origin therefore evicts its own connections, and not those from
//! other origins.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The origin of an unauthenticated peer: an IPv4 address, or the upper half of an IPv6 address.
///
/// A client that has one address with this upper half usually has all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Origin(Option<(bool, u64)>);

impl Origin {
    fn of(address: Option<SocketAddr>) -> Self {
        Self(address.map(|address| match address.ip().to_canonical() {
            IpAddr::V4(ip) => (false, u64::from(ip.to_bits())),
            IpAddr::V6(ip) => (true, (ip.to_bits() >> 64) as u64),
        }))
    }
}

#[derive(Debug)]
struct Entry<T> {
    origin: Origin,
    since: Instant,
    is_authenticated: bool,
    value: T,
}

/// Pending connections, numbered in the order of arrival.
#[derive(Debug)]
pub(super) struct PendingConnections<T> {
    connections: BTreeMap<u64, Entry<T>>,
    /// Number of unauthenticated connections from each origin; never 0.
    unauthenticated: HashMap<Origin, usize>,
    next: u64,
}

impl<T> PendingConnections<T> {
    pub(super) fn new() -> Self {
        Self { connections: BTreeMap::new(), unauthenticated: HashMap::new(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns the number that the next connection gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds an unauthenticated connection.
    pub(super) fn add(&mut self, address: Option<SocketAddr>, since: Instant, value: T) {
        let origin = Origin::of(address);
        *self.unauthenticated.entry(origin).or_default() += 1;
        self.connections.insert(self.next, Entry { origin, since, is_authenticated: false, value });
        self.next += 1;
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.connections.get_mut(&number).map(|connection| &mut connection.value)
    }

    /// Marks a connection as authenticated.
    pub(super) fn mark_authenticated(&mut self, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number)
            && !std::mem::replace(&mut connection.is_authenticated, true)
        {
            let origin = connection.origin;
            self.decrement_origin(origin);
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let connection = self.connections.remove(&number)?;
        if !connection.is_authenticated {
            self.decrement_origin(connection.origin);
        }
        Some(connection.value)
    }

    /// Returns the connection to close if there are too many.
    pub(super) fn eviction_candidate(&self) -> Option<u64> {
        let most = self.unauthenticated.values().max();
        let is_of_most = |connection: &Entry<T>| {
            !connection.is_authenticated && self.unauthenticated.get(&connection.origin) == most
        };
        let candidate = self.connections.iter().find(|(_, connection)| is_of_most(connection));
        candidate.or_else(|| self.connections.iter().next()).map(|(number, _)| *number)
    }

    /// Returns the oldest connection if it has waited for `wait_max`, otherwise the remaining time.
    pub(super) fn overdue(
        &self,
        wait_max: Duration,
        now: Instant,
    ) -> Result<u64, Option<Duration>> {
        let Some((number, connection)) = self.connections.iter().next() else { return Err(None) };
        let left = wait_max.saturating_sub(now.saturating_duration_since(connection.since));
        if left.is_zero() { Ok(*number) } else { Err(Some(left)) }
    }

    fn decrement_origin(&mut self, origin: Origin) {
        if let Some(count) = self.unauthenticated.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.unauthenticated.remove(&origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(10);

    fn from(address: &str) -> Option<SocketAddr> {
        Some(address.parse().expect("an address"))
    }

    /// Returns unauthenticated connections from these addresses.
    fn pending_connections(addresses: &[&str]) -> PendingConnections<usize> {
        let mut pending_connections = PendingConnections::new();
        let now = Instant::now();
        for (value, address) in addresses.iter().enumerate() {
            pending_connections.add(from(address), now, value);
        }
        pending_connections
    }

    #[test]
    fn the_oldest_connection_of_the_most_frequent_origin_is_evicted() {
        let mut pending_connections =
            pending_connections(&["10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "[::ffff:10.0.0.2]:3"]);
        assert_eq!(pending_connections.eviction_candidate(), Some(1));
        assert_eq!(pending_connections.remove(1), Some(1));
        assert_eq!(pending_connections.eviction_candidate(), Some(2));
        assert_eq!(pending_connections.remove(2), Some(2));
        assert_eq!(
            pending_connections.eviction_candidate(),
            Some(0),
            "as many from each: whoever came first"
        );
    }

    #[test]
    fn one_ipv6_network_is_one_origin() {
        let pending_connections =
            pending_connections(&["[2001:db8::1]:1", "[2001:db8:1::1]:1", "[2001:db8:1::2]:1"]);
        assert_eq!(pending_connections.eviction_candidate(), Some(1));
    }

    #[test]
    fn unauthenticated_connections_are_evicted_before_authenticated_ones() {
        let mut pending_connections =
            pending_connections(&["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"]);
        pending_connections.mark_authenticated(0);
        pending_connections.mark_authenticated(0);
        assert_eq!(pending_connections.eviction_candidate(), Some(1));
        pending_connections.remove(1);
        assert_eq!(pending_connections.eviction_candidate(), Some(2));
        pending_connections.remove(2);
        assert_eq!(pending_connections.eviction_candidate(), Some(0));
        assert_eq!((pending_connections.remove(0), pending_connections.len()), (Some(0), 0));
        assert_eq!(pending_connections.eviction_candidate(), None);
    }

    #[test]
    fn an_authenticated_connection_can_be_overdue() {
        let mut pending_connections = PendingConnections::new();
        let start = Instant::now();
        assert_eq!(pending_connections.overdue(WAIT_MAX, start), Err(None));
        pending_connections.add(None, start, ());
        pending_connections.add(None, start + WAIT_MAX / 2, ());
        pending_connections.mark_authenticated(0);
        assert_eq!(
            pending_connections.overdue(WAIT_MAX, start + WAIT_MAX / 4),
            Err(Some(WAIT_MAX * 3 / 4))
        );
        assert_eq!(pending_connections.overdue(WAIT_MAX, start + WAIT_MAX), Ok(0));
        pending_connections.remove(0);
        assert_eq!(
            pending_connections.overdue(WAIT_MAX, start + WAIT_MAX),
            Err(Some(WAIT_MAX / 2))
        );
    }
}
