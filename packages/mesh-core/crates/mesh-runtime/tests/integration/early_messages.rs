//! Messages that arrive before the spawn of their receiver, whose port another process allocated.

use bytes::Bytes;
use mesh_runtime::events::{EventKind, RECORD_LEN};
use mesh_runtime::fault;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::node::{CallSpec, Node, NodeConfig, Reply, Target, first_incarnation};
use mesh_wire::frame::Kind;
use mesh_wire::id::{JobId, PortId, ProcId};
use std::sync::Arc;
use std::time::Duration;

/// The position of the kind in the record of an event.
const KIND_AT: usize = 44;

fn node(slot: u32) -> Node {
    node_with(slot, 0)
}

fn node_with(slot: u32, incarnation: u32) -> Node {
    Node::new(NodeConfig {
        me: ProcId::new(0, slot),
        incarnation,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 20,
    })
}

fn spec(kind: Kind, port: PortId, to: u32) -> CallSpec {
    CallSpec {
        kind,
        targets: Arc::new([Target { proc: ProcId::new(0, to), rank: 0 }]),
        port,
        meta_len: 4,
        part_count: 0,
        tail: Bytes::from_static(&[8, 0, 0, 0, b'x']),
        window: 8,
        timeout: None,
    }
}

/// Sends a call to an actor in this process whose port number another process has allocated.
fn early_call(me: &mut Node) -> (PortId, PortId) {
    let port = node(7).new_port();
    let reply_port = me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    (port, reply_port)
}

fn replies(me: &mut Node, reply_port: PortId) -> Vec<Reply> {
    let mut got = Vec::new();
    me.take_replies(reply_port, &mut got);
    got
}

/// Returns how many messages were recorded as received since the last call.
fn received_count(me: &mut Node) -> usize {
    let (records, _) = me.events().take(usize::MAX);
    let kinds = records.chunks(RECORD_LEN).map(|record| record[KIND_AT]);
    kinds.filter(|kind| *kind == EventKind::Received as u8).count()
}

#[test]
fn an_early_call_waits_for_the_spawn() {
    let mut me = node(1);
    let (port, reply_port) = early_call(&mut me);
    assert!(replies(&mut me, reply_port).is_empty(), "it is not refused");
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    let mut got = Vec::new();
    me.take_messages(port, 8, &mut got).expect("the spawn has opened the mailbox");
    assert_eq!(got.len(), 1);
}

#[test]
fn an_early_call_is_recorded_as_received_once() {
    let mut me = node(1);
    me.events().start(8);
    let (port, _) = early_call(&mut me);
    assert_eq!(received_count(&mut me), 0, "it is in no mailbox yet");
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    assert_eq!(received_count(&mut me), 1);
}

#[test]
fn an_early_call_is_refused_without_a_spawn() {
    let mut me = node(1);
    let (_, reply_port) = early_call(&mut me);
    assert!(me.is_untimed());
    me.advance(Duration::from_secs(100));
    assert!(!me.is_untimed());
    assert!(replies(&mut me, reply_port).is_empty(), "the wait begins when the time is told");
    let due = me.next_deadline().expect("it is waited for");
    me.advance(due);
    assert_eq!(replies(&mut me, reply_port)[0].code, fault::STOPPED);
    assert_eq!(me.next_deadline(), None);
}

#[test]
fn an_early_call_is_kept_while_the_process_is_set_up() {
    let mut me = node(1);
    me.keep_early_messages(true);
    let (_, reply_port) = early_call(&mut me);
    for hour in 1..10 {
        me.advance(Duration::from_secs(3600 * hour));
    }
    assert!(replies(&mut me, reply_port).is_empty(), "it is not refused");
}

#[test]
fn the_wait_of_an_early_call_restarts_once_the_process_is_set_up() {
    let mut me = node(1);
    me.keep_early_messages(true);
    let (_, reply_port) = early_call(&mut me);
    me.advance(Duration::from_secs(1));
    let was_due = me.next_deadline().expect("it is waited for");
    me.keep_early_messages(false);
    me.advance(was_due);
    assert!(replies(&mut me, reply_port).is_empty(), "its wait has just begun");
    let due = me.next_deadline().expect("it is waited for");
    me.advance(due);
    assert_eq!(replies(&mut me, reply_port)[0].code, fault::STOPPED);
}

#[test]
fn a_cancelled_early_call_is_never_delivered() {
    let mut me = node(1);
    let (port, reply_port) = early_call(&mut me);
    me.cancel(reply_port);
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    let mut got = Vec::new();
    me.take_messages(port, 8, &mut got).expect("the spawn has opened the mailbox");
    assert!(got.is_empty());
}

#[test]
fn a_call_to_a_closed_port_of_this_process_is_refused_immediately() {
    let mut me = node(1);
    let port = me.new_port();
    let reply_port = me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    assert_eq!(replies(&mut me, reply_port)[0].code, fault::STOPPED);
}

#[test]
fn an_early_call_is_refused_when_the_allocator_announces_no_spawn() {
    let mut me = node(1);
    let mut allocator = node(7);
    let (lost, coming, up_to) = (allocator.new_port(), allocator.new_port(), allocator.new_port());
    let early: Vec<PortId> = [lost, coming]
        .into_iter()
        .map(|port| me.call(&spec(Kind::Call, port, 1)).expect("there is space"))
        .collect();
    me.expect_spawns(up_to, vec![coming]);
    assert_eq!(replies(&mut me, early[0])[0].code, fault::STOPPED);
    assert!(replies(&mut me, early[1]).is_empty(), "this one is still to come");
    let late = me.call(&spec(Kind::Call, lost, 1)).expect("there is space");
    assert_eq!(replies(&mut me, late)[0].code, fault::STOPPED, "nor does it wait from now on");
}

#[test]
fn calls_to_later_ports_of_any_process_wait() {
    let mut me = node(1);
    let mut allocator = node(7);
    let up_to = allocator.new_port();
    me.expect_spawns(up_to, Vec::new());
    for port in [allocator.new_port(), node(8).new_port()] {
        let reply_port = me.call(&spec(Kind::Call, port, 1)).expect("there is space");
        assert!(replies(&mut me, reply_port).is_empty(), "it is not refused");
    }
}

#[test]
fn calls_to_ports_of_the_next_process_in_the_slot_wait() {
    // Their numbers may be lower: incarnations and epochs share a few bits.
    let incarnations = [
        (254, 255),
        (255, 256),
        (100, first_incarnation(1)),
        (first_incarnation(2), first_incarnation(3)),
    ];
    for (before, after) in incarnations {
        let mut me = node(1);
        let (mut allocator, mut next) = (node_with(7, before), node_with(7, after));
        let lost = allocator.new_port();
        me.expect_spawns(allocator.new_port(), Vec::new());
        let reply_port = me.call(&spec(Kind::Call, lost, 1)).expect("there is space");
        assert_eq!(replies(&mut me, reply_port)[0].code, fault::STOPPED);
        let reply_port = me.call(&spec(Kind::Call, next.new_port(), 1)).expect("there is space");
        assert!(replies(&mut me, reply_port).is_empty(), "{after} is refused after {before}");
    }
}

#[test]
fn the_announcement_of_a_dead_process_does_not_apply_to_the_next() {
    let mut me = node(1);
    // After this many incarnations the numbers repeat.
    let (mut allocator, mut next) = (node_with(7, 0), node_with(7, 256));
    let port = next.new_port();
    let made: Vec<PortId> = (0..5).map(|_| allocator.new_port()).collect();
    assert!(made.contains(&port));
    me.expect_spawns(made[4], Vec::new());
    me.proc_died(ProcId::new(0, 7), 0, Bytes::new());
    let reply_port = me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    assert!(replies(&mut me, reply_port).is_empty(), "it is not refused");
}

#[test]
fn a_spawn_after_the_announcement_is_accepted() {
    let mut me = node(1);
    let mut allocator = node(7);
    let (port, up_to) = (allocator.new_port(), allocator.new_port());
    me.expect_spawns(up_to, Vec::new());
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    let mut got = Vec::new();
    me.take_messages(port, 8, &mut got).expect("the spawn has opened the mailbox");
    assert_eq!(got.len(), 1);
}

#[test]
fn messages_after_a_second_spawn_go_to_the_new_actor() {
    let mut me = node(1);
    let port = node(7).new_port();
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    me.call(&spec(Kind::Spawn, port, 1)).expect("there is space");
    let reply_port = me.call(&spec(Kind::Call, port, 1)).expect("there is space");
    let mut got = Vec::new();
    me.take_messages(port, 8, &mut got).expect("the old one still serves");
    assert_eq!(got.len(), 1, "only what was sent before");
    let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
    me.close_mailbox(port, closed);
    me.advance(Duration::from_secs(1));
    me.advance(Duration::from_secs(100));
    assert!(replies(&mut me, reply_port).is_empty(), "it waits as long as that takes");
    me.open_mailbox(port, 8);
    got.clear();
    me.take_messages(port, 8, &mut got).expect("the new one serves");
    assert_eq!(got.len(), 1);
}
