//! Connections within this host whose peer is not identified yet.
//!
//! Connections from other hosts stay in [`super::listener`] until they are authenticated. A process
//! of this host identifies itself with its first bytes, so a connection without a greeting is stuck
//! or foreign.

use super::wire::{Wire, lock};
use super::{Engine, Shared};
use crate::node::{LinkId, Node};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The default time limit for the hello of a process.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Connections in the order in which they were accepted, with their times.
///
/// Connections that have sent a greeting stay listed until their time limit has passed.
pub(super) struct UnidentifiedLinks {
    links: VecDeque<(Instant, LinkId)>,
    hello_max: Duration,
}

impl Default for UnidentifiedLinks {
    fn default() -> Self {
        Self { links: VecDeque::new(), hello_max: HELLO_MAX }
    }
}

impl UnidentifiedLinks {
    /// Returns when the time limit of the next connection passes.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.links.front().map(|(since, _)| *since + self.hello_max)
    }
}

impl Engine {
    /// Sets the time limit for the hello of a process of this host.
    pub fn set_hello_max(&self, limit: Duration) {
        lock(&self.shared).unidentified.hello_max = limit;
        self.io.waker.wake();
    }

    pub(super) fn accept(&self) {
        let Some(listener) = self.listener.get() else { return };
        if self.is_short() {
            return;
        }
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    self.note_shortage(&error);
                    return;
                }
            };
            let is_ours = rustix::net::sockopt::socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid == rustix::process::geteuid());
            if let (true, Ok(wire)) = (is_ours, Wire::local(stream)) {
                let link = self.add_wire(Arc::new(wire), Node::accepted);
                lock(&self.shared).unidentified.links.push_back((Instant::now(), link));
            }
        }
    }

    /// Closes connections that have not sent a greeting in time.
    pub(super) fn close_unidentified(&self, now: Instant) {
        let mut late = Vec::new();
        {
            let mut shared = lock(&self.shared);
            while shared.unidentified.next_due().is_some_and(|due| due <= now) {
                let Some((_, link)) = shared.unidentified.links.pop_front() else { break };
                late.extend(shared.unidentified_wire(link).map(|wire| (link, wire)));
            }
        }
        for (link, wire) in late {
            self.drop_link(link, &wire);
        }
    }
}

impl Shared {
    /// Returns the socket of a connection whose peer is not identified.
    fn unidentified_wire(&self, link: LinkId) -> Option<Arc<Wire>> {
        if self.node.peer_of(link).is_some() {
            return None;
        }
        self.wires.get(&link).cloned()
    }
}
