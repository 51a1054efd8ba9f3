//! Credit is returned whatever happens to the messages.

use bytes::Bytes;
use mesh_runtime::node::{CallSpec, Effect, LinkId, Node, NodeConfig, SendError, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::{JobId, PortId, ProcId};
use std::sync::Arc;

const AGENT: ProcId = ProcId::new(0, 0);
const WORKER: ProcId = ProcId::new(0, 1);
const BACKLOG_MAX: usize = 1000;

/// An agent and a worker of its host, with a connection between them.
struct Pair {
    agent: Node,
    worker: Node,
    at_agent: LinkId,
    at_worker: LinkId,
}

impl Pair {
    fn new() -> Self {
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
    fn pump(&mut self) -> bool {
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

fn one_way(port: PortId, window: u32, len: usize) -> CallSpec {
    CallSpec {
        kind: Kind::Call,
        targets: Arc::new([Target { proc: WORKER, rank: 0 }]),
        port,
        meta_len: 0,
        part_count: 0,
        tail: Bytes::from(vec![0; len]),
        window,
        timeout: None,
    }
}

#[test]
fn a_dropped_mailbox_returns_the_credit_of_taken_messages() {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 8);
    let spec = one_way(port, 3, 1);
    for _ in 0..3 {
        pair.agent.send(&spec).expect("three fit");
    }
    pair.pump();
    assert!(!pair.agent.has_room(&spec));
    let mut taken = Vec::new();
    pair.worker.take_messages(port, 8, &mut taken).expect("the mailbox is open");
    pair.worker.drop_port(port);
    pair.pump();
    assert!(pair.agent.has_room(&spec));
}

#[test]
fn a_sender_blocked_by_bytes_is_notified_when_they_arrive() {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 8);
    let spec = one_way(port, 8, BACKLOG_MAX + 1);
    pair.agent.send(&spec).expect("the backlog is empty");
    assert_eq!(pair.agent.send(&spec), Err(SendError::Backlog(WORKER)));
    assert!(pair.pump(), "the sender asks for an ack, and the ack makes room");
    assert!(pair.agent.has_room(&spec));
}
