//! An exception that no caller will see is reported to the agent of the process that called.

use crate::node_pair::{Pair, to_worker};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::PortId;

/// A call to the worker that was sent, and the worker's copy of it.
fn called() -> (Pair, PortId, Frame) {
    let mut pair = Pair::new();
    let port = pair.agent.new_port();
    pair.worker.open_mailbox(port, 8);
    let reply_port = pair.agent.call(&to_worker(port, 8, Vec::new())).expect("there is space");
    pair.pump();
    let mut taken = Vec::new();
    pair.worker.take_messages(port, 1, &mut taken).expect("the mailbox is open");
    (pair, reply_port, taken.remove(0))
}

fn reply(pair: &mut Pair, call: &Frame, code: u8) {
    pair.worker.reply(&call.head, code, (0, 0), Bytes::from_static(b"boom"));
    pair.pump();
}

/// Returns the exceptions that the agent was notified of.
fn reported(pair: &mut Pair) -> Vec<Bytes> {
    let mut messages = Vec::new();
    pair.agent.take_messages(PortId::AGENT, 8, &mut messages).expect("the agent is there");
    let faults = messages.iter().filter(|message| message.head.kind == Kind::Fault);
    faults.map(Frame::body).collect()
}

#[test]
fn an_exception_is_reported_if_it_arrives_before_the_call_is_abandoned() {
    let (mut pair, reply_port, call) = called();
    reply(&mut pair, &call, fault::RAISED);
    assert!(reported(&mut pair).is_empty());
    pair.agent.abandon(reply_port);
    assert_eq!(reported(&mut pair), ["boom"]);
}

#[test]
fn an_exception_is_reported_if_it_arrives_after_the_call_is_abandoned() {
    let (mut pair, reply_port, call) = called();
    pair.agent.abandon(reply_port);
    reply(&mut pair, &call, fault::RAISED);
    assert_eq!(reported(&mut pair), ["boom"]);
}

#[test]
fn nothing_is_reported_if_the_exception_was_received() {
    let (mut pair, reply_port, call) = called();
    reply(&mut pair, &call, fault::RAISED);
    pair.agent.take_replies(reply_port, &mut Vec::new());
    pair.agent.abandon(reply_port);
    assert!(reported(&mut pair).is_empty());
}

#[test]
fn neither_values_nor_faults_of_the_system_are_reported() {
    for code in [0, fault::STOPPED] {
        let (mut pair, reply_port, call) = called();
        pair.agent.abandon(reply_port);
        reply(&mut pair, &call, code);
        assert!(reported(&mut pair).is_empty());
    }
    let (mut pair, reply_port, call) = called();
    pair.agent.forget(reply_port);
    reply(&mut pair, &call, fault::RAISED);
    assert!(reported(&mut pair).is_empty());
}
