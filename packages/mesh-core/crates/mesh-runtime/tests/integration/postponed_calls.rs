//! A call that must not block waits until its receivers have capacity.

use crate::node_pair::{AGENT, BACKLOG_MAX, Pair, WORKER, to_worker};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{CallSpec, Effect, Progress, SendError, Target};
use mesh_wire::frame::{Frame, Part};
use mesh_wire::id::PortId;
use std::sync::Arc;
use std::time::Duration;

/// A call of `value` to the worker, which may have one unanswered call.
fn call(port: PortId, value: u8) -> CallSpec {
    to_worker(port, 1, vec![value])
}

/// A pair with a mailbox in the worker and, on the same port, in the agent.
fn pair_with_mailboxes() -> (Pair, PortId) {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 1);
    pair.agent.open_mailbox(port, 1);
    (pair, port)
}

/// Lets the worker reply to all messages in its mailbox; returns their values.
fn serve(pair: &mut Pair, port: PortId) -> Vec<u8> {
    pair.pump();
    let mut taken: Vec<Frame> = Vec::new();
    pair.worker.take_messages(port, 64, &mut taken).expect("the mailbox is open");
    for message in &taken {
        pair.worker.reply(&message.head, 0, (0, 0), Bytes::new());
    }
    pair.pump();
    taken.iter().map(|message| message.body()[0]).collect()
}

#[test]
fn postponed_calls_are_sent_in_order_and_not_overtaken() {
    let (mut pair, port) = pair_with_mailboxes();
    let calls: Vec<PortId> = (0..4)
        .map(|n| pair.agent.call_or_postpone(&call(port, n)).expect("it is postponed"))
        .collect();
    assert_eq!(serve(&mut pair, port), [0]);
    // The reply freed capacity, which belongs to the first of the postponed calls.
    assert!(!pair.agent.has_capacity(&call(port, 9)));
    assert!(matches!(pair.agent.call(&call(port, 9)), Err(SendError::Full(_))));
    for n in 1..4 {
        assert_eq!(serve(&mut pair, port), [n]);
    }
    for reply_port in calls {
        let mut replies = Vec::new();
        assert_eq!(pair.agent.take_replies(reply_port, &mut replies), Progress::Complete);
        assert_eq!(replies.len(), 1);
    }
    assert!(pair.agent.has_capacity(&call(port, 9)));
}

#[test]
fn a_cancelled_call_is_never_sent() {
    let (mut pair, port) = pair_with_mailboxes();
    let calls = [0, 1, 2].map(|n| pair.agent.call_or_postpone(&call(port, n)).expect("postponed"));
    assert!(pair.agent.cancel(calls[1]));
    assert_eq!(serve(&mut pair, port), [0]);
    assert_eq!(serve(&mut pair, port), [2]);
}

#[test]
fn a_postponed_call_fails_at_its_deadline_without_being_sent() {
    let (mut pair, port) = pair_with_mailboxes();
    pair.agent.call_or_postpone(&call(port, 0)).expect("the mailbox has space");
    let hurried = CallSpec { timeout: Some(Duration::from_secs(1)), ..call(port, 1) };
    let reply_port = pair.agent.call_or_postpone(&hurried).expect("it is postponed");
    pair.agent.advance(Duration::from_secs(2));
    let mut replies = Vec::new();
    assert_eq!(pair.agent.take_replies(reply_port, &mut replies), Progress::Complete);
    assert_eq!(replies[0].code, fault::DEADLINE);
    assert_eq!(serve(&mut pair, port), [0]);
    assert_eq!(serve(&mut pair, port), []);
}

#[test]
fn the_death_of_one_receiver_does_not_stop_the_call_to_the_others() {
    let (mut pair, port) = pair_with_mailboxes();
    let both: Arc<[Target]> =
        Arc::new([Target { proc: WORKER, rank: 0 }, Target { proc: AGENT, rank: 1 }]);
    pair.agent.call_or_postpone(&call(port, 0)).expect("the mailbox has space");
    let wide = CallSpec { targets: both, ..call(port, 1) };
    let reply_port = pair.agent.call_or_postpone(&wide).expect("it is postponed");
    pair.pump();
    assert_eq!(pair.agent.mailbox_len(port), 0);
    pair.agent.proc_died(WORKER, 0, Bytes::from_static(b"killed"));
    pair.pump();
    let mut taken = Vec::new();
    pair.agent.take_messages(port, 8, &mut taken).expect("the mailbox is open");
    pair.agent.reply(&taken[0].head, 0, (0, 0), Bytes::new());
    let mut replies = Vec::new();
    assert_eq!(pair.agent.take_replies(reply_port, &mut replies), Progress::Complete);
    let codes: Vec<_> = replies.iter().map(|reply| (reply.rank, reply.code)).collect();
    assert_eq!(codes, [(0, fault::PROC_DIED), (1, 0)]);
}

#[test]
fn a_call_to_several_receivers_waits_behind_earlier_calls_to_each() {
    let (mut pair, port) = pair_with_mailboxes();
    let both: Arc<[Target]> =
        Arc::new([Target { proc: WORKER, rank: 0 }, Target { proc: AGENT, rank: 1 }]);
    let here = CallSpec { targets: Arc::new([Target { proc: AGENT, rank: 1 }]), ..call(port, 7) };
    pair.agent.call_or_postpone(&call(port, 0)).expect("the mailbox has space");
    pair.agent.call_or_postpone(&CallSpec { targets: both, ..call(port, 1) }).expect("postponed");
    pair.agent.call_or_postpone(&here).expect("it is postponed, although there is space");
    assert_eq!(pair.agent.mailbox_len(port), 0);
    assert_eq!(serve(&mut pair, port), [0]);
    let mut taken = Vec::new();
    pair.agent.take_messages(port, 8, &mut taken).expect("the mailbox is open");
    assert_eq!(taken.iter().map(|message| message.body()[0]).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_call_over_the_limit_is_refused_and_its_memory_is_not_kept() {
    let (mut pair, port) = pair_with_mailboxes();
    pair.agent.call_or_postpone(&call(port, 0)).expect("the mailbox has space");
    let long = CallSpec { tail: Bytes::from(vec![1; BACKLOG_MAX]), ..call(port, 1) };
    pair.agent.call_or_postpone(&long).expect("one is postponed, whatever its length");
    assert!(matches!(pair.agent.call_or_postpone(&call(port, 2)), Err(SendError::Full(_))));
    assert_eq!(serve(&mut pair, port), [0]);
    assert_eq!(serve(&mut pair, port), [1]);
    pair.agent.call_or_postpone(&call(port, 3)).expect("the long call was sent");
}

#[test]
fn the_shared_memory_of_a_cancelled_call_is_released() {
    let (mut pair, port) = pair_with_mailboxes();
    pair.agent.call_or_postpone(&call(port, 0)).expect("the mailbox has space");
    let part = Part { owner: AGENT, segment: 3, generation: 5, offset: 0, len: 8 };
    let tail = Bytes::copy_from_slice(&part.encode());
    let shared = CallSpec { part_count: 1, tail, ..call(port, 1) };
    let reply_port = pair.agent.call_or_postpone(&shared).expect("it is postponed");
    pair.agent.cancel(reply_port);
    let released = Effect::Released { reader: WORKER, segment: 3, generation: 5 };
    assert!(pair.agent.effects().any(|effect| effect == released));
}
