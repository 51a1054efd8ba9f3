//! Credit is returned whatever happens to the messages.

use crate::node_pair::{BACKLOG_MAX, Pair, WORKER};
use bytes::Bytes;
use mesh_runtime::node::{CallSpec, SendError, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::PortId;
use std::sync::Arc;

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
