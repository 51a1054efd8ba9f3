//! An agent and a worker of its host, for tests of messages between two processes.

use bytes::Bytes;
use mesh_runtime::node::{CallSpec, Effect, LinkId, Node, NodeConfig, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::{JobId, PortId, ProcId};
use std::sync::Arc;

pub(crate) const AGENT: ProcId = ProcId::new(0, 0);
pub(crate) const WORKER: ProcId = ProcId::new(0, 1);
/// Number of bytes that may be queued for a peer.
pub(crate) const BACKLOG_MAX: usize = 1000;

/// A message to a port of the worker; the sender may have `window` of them outstanding.
pub(crate) fn to_worker(port: PortId, window: u32, body: Vec<u8>) -> CallSpec {
    CallSpec {
        kind: Kind::Call,
        targets: Arc::new([Target { proc: WORKER, rank: 0 }]),
        port,
        meta_len: 0,
        part_count: 0,
        tail: Bytes::from(body),
        window,
        timeout: None,
    }
}

/// An agent and a worker of its host, with a connection between them.
pub(crate) struct Pair {
    pub(crate) agent: Node,
    pub(crate) worker: Node,
    at_agent: LinkId,
    at_worker: LinkId,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let config = |me| NodeConfig {
            me,
            incarnation: 0,
            job: JobId([1; 16]),
            token: [2; 32],
            backlog_bytes_max: BACKLOG_MAX,
        };
        let (mut agent, mut worker) = (Node::new(config(AGENT)), Node::new(config(WORKER)));
        agent.proc_started(WORKER, 0);
        worker.dial(AGENT);
        let (at_worker, at_agent) = (worker.connected(AGENT), agent.accepted());
        let mut pair = Self { agent, worker, at_agent, at_worker };
        pair.pump();
        pair
    }

    /// Delivers frames in both directions until none are left.
    ///
    /// Returns whether the agent got credit.
    pub(crate) fn pump(&mut self) -> bool {
        let mut is_credited = false;
        while self.agent.has_effects() || self.worker.has_effects() {
            let effects: Vec<Effect> = self.agent.effects().collect();
            for effect in effects {
                match effect {
                    Effect::Transmit { frame, .. } => self.worker.receive(self.at_worker, frame),
                    effect => is_credited |= effect == Effect::Credited,
                }
            }
            let effects: Vec<Effect> = self.worker.effects().collect();
            for effect in effects {
                if let Effect::Transmit { frame, .. } = effect {
                    self.agent.receive(self.at_agent, frame);
                }
            }
        }
        is_credited
    }
}
