//! Two processes and the connection between them, driven by hand.

use bytes::Bytes;
use mesh_runtime::events::{EventKind, RECORD_LEN};
use mesh_runtime::node::{CallSpec, Effect, LinkId, Node, NodeConfig, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::{JobId, PortId, ProcId};
use std::sync::Arc;

fn node(slot: u32) -> Node {
    Node::new(NodeConfig {
        me: ProcId::new(0, slot),
        incarnation: 0,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 20,
    })
}

/// Delivers frames in both directions until none are left.
fn pump(left: (&mut Node, LinkId), right: (&mut Node, LinkId)) {
    loop {
        let mut moved = false;
        for (from, to) in [(&mut *left.0, (&mut *right.0, right.1))] {
            let effects: Vec<Effect> = from.effects().collect();
            for effect in effects {
                if let Effect::Transmit { frame, .. } = effect {
                    to.0.receive(to.1, frame);
                    moved = true;
                }
            }
        }
        let effects: Vec<Effect> = right.0.effects().collect();
        for effect in effects {
            if let Effect::Transmit { frame, .. } = effect {
                left.0.receive(left.1, frame);
                moved = true;
            }
        }
        if !moved {
            return;
        }
    }
}

#[test]
fn a_link_down_event_is_recorded_once_in_either_order() {
    for is_link_first in [true, false] {
        let (mut agent, mut worker) = (node(0), node(1));
        agent.events().start(16);
        agent.proc_started(ProcId::new(0, 1), 0);
        worker.dial(ProcId::new(0, 0));
        let at_worker = worker.connected(ProcId::new(0, 0));
        let at_agent = agent.accepted();
        pump((&mut agent, at_agent), (&mut worker, at_worker));
        if is_link_first {
            agent.link_down(at_agent);
        }
        agent.proc_died(ProcId::new(0, 1), 0, Bytes::new());
        agent.link_down(at_agent);
        let (records, _) = agent.events().take(usize::MAX);
        let kinds: Vec<u8> = records.chunks(RECORD_LEN).map(|record| record[44]).collect();
        let expected = [EventKind::LinkUp, EventKind::LinkDown, EventKind::Died];
        assert_eq!(kinds, expected.map(|kind| kind as u8));
    }
}

#[test]
fn messages_sent_before_a_process_reports_reach_it() {
    let (mut agent, mut worker) = (node(0), node(1));
    agent.proc_started(ProcId::new(0, 1), 0);
    let port = agent.new_port();
    let spec = |kind| CallSpec {
        kind,
        targets: Arc::new([Target { proc: ProcId::new(0, 1), rank: 0 }]),
        port,
        meta_len: 4,
        part_count: 0,
        tail: Bytes::from_static(&[8, 0, 0, 0, b'x']),
        window: 8,
        timeout: None,
    };
    agent.call(&spec(Kind::Spawn)).expect("the mailbox has space");
    agent.call(&spec(Kind::Call)).expect("the mailbox has space");
    worker.dial(ProcId::new(0, 0));
    let at_worker = worker.connected(ProcId::new(0, 0));
    let at_agent = agent.accepted();
    pump((&mut agent, at_agent), (&mut worker, at_worker));
    let mut got = Vec::new();
    worker.take_messages(PortId::AGENT, 8, &mut got).expect("the agent's mailbox is open");
    assert_eq!(got.len(), 1, "the spawn");
    got.clear();
    worker.take_messages(port, 8, &mut got).expect("the spawn has opened the mailbox");
    assert_eq!(got.len(), 1, "the call behind it");
}
