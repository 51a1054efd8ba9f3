//! Connections of this host that have not said yet who they are.
//!
//! Callers from other hosts are kept at the gate until they have; a process of this host says it
//! with its first bytes, so one that does not is stuck or none of ours.

use super::wire::{Wire, lock};
use super::{Engine, Shared};
use crate::node::{LinkId, Node};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process may take until its hello is there, unless the engine is told otherwise.
const HELLO_MAX: Duration = Duration::from_secs(10);

/// Links in the order in which they were opened, with when; those that have greeted since are in it
/// until their time is over.
pub(super) struct Strangers {
    links: VecDeque<(Instant, LinkId)>,
    hello_max: Duration,
}

impl Default for Strangers {
    fn default() -> Self {
        Self { links: VecDeque::new(), hello_max: HELLO_MAX }
    }
}

impl Strangers {
    /// When the next one will have taken too long.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.links.front().map(|(since, _)| *since + self.hello_max)
    }
}

impl Engine {
    /// Says how long a process of this host may take until its hello is there.
    pub fn set_hello_max(&self, limit: Duration) {
        lock(&self.shared).strangers.hello_max = limit;
        self.io.bell.ring();
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
            if let (true, Ok(wire)) = (is_ours, Wire::here(stream)) {
                let link = self.add_wire(Arc::new(wire), Node::accepted);
                lock(&self.shared).strangers.links.push_back((Instant::now(), link));
            }
        }
    }

    /// Closes the links of those who have not said in time who they are.
    pub(super) fn see_off_strangers(&self, now: Instant) {
        let mut late = Vec::new();
        {
            let mut shared = lock(&self.shared);
            while shared.strangers.next_due().is_some_and(|due| due <= now) {
                let Some((_, link)) = shared.strangers.links.pop_front() else { break };
                late.extend(shared.stranger(link).map(|wire| (link, wire)));
            }
        }
        for (link, wire) in late {
            self.drop_link(link, &wire);
        }
    }
}

impl Shared {
    /// The wire of a link whose other end nobody knows.
    fn stranger(&self, link: LinkId) -> Option<Arc<Wire>> {
        if self.node.peer_of(link).is_some() {
            return None;
        }
        self.wires.get(&link).cloned()
    }
}
