//! Credit is returned whatever happens to the messages.

use crate::node_pair::{BACKLOG_MAX, Pair, WORKER, to_worker};
use mesh_runtime::node::SendError;

#[test]
fn a_dropped_mailbox_returns_the_credit_of_taken_messages() {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 8);
    let spec = to_worker(port, 3, vec![0]);
    for _ in 0..3 {
        pair.agent.send(&spec).expect("three fit");
    }
    pair.pump();
    assert!(!pair.agent.has_capacity(&spec));
    let mut taken = Vec::new();
    pair.worker.take_messages(port, 8, &mut taken).expect("the mailbox is open");
    pair.worker.drop_port(port);
    pair.pump();
    assert!(pair.agent.has_capacity(&spec));
}

#[test]
fn a_sender_blocked_by_bytes_is_notified_when_they_arrive() {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 8);
    let spec = to_worker(port, 8, vec![0; BACKLOG_MAX + 1]);
    pair.agent.send(&spec).expect("the backlog is empty");
    assert_eq!(pair.agent.send(&spec), Err(SendError::Backlog(WORKER)));
    assert!(pair.pump(), "the sender asks for an ack, and the ack frees space");
    assert!(pair.agent.has_capacity(&spec));
}
