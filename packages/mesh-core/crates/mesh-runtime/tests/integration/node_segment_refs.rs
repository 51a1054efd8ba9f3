//! The shared memory of a message is released whatever happens to the message.

use bytes::Bytes;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::node::{CallSpec, Effect, LinkId, Node, NodeConfig, PORT_MARK, Reply, Target};
use mesh_wire::frame::{Frame, Kind, Part};
use mesh_wire::id::{JobId, PortId, ProcId};
use std::sync::Arc;

const OWNER: ProcId = ProcId::new(0, 0);
const WORKER: ProcId = ProcId::new(0, 1);
const SEGMENT: u32 = 3;
const GENERATION: u32 = 5;
const ACQUIRED: Effect = Effect::Acquired { segment: SEGMENT, generation: GENERATION };

fn released_by(reader: ProcId) -> Effect {
    Effect::Released { reader, segment: SEGMENT, generation: GENERATION }
}

/// The owner of a segment and a worker that was sent bytes in it, with a connection between them.
struct Pair {
    owner: Node,
    worker: Node,
    at_owner: LinkId,
    at_worker: LinkId,
    port: PortId,
}

impl Pair {
    fn new() -> Self {
        let config = |me| NodeConfig {
            me,
            incarnation: 0,
            job: JobId([1; 16]),
            token: [2; 32],
            backlog_bytes_max: 1 << 20,
        };
        let (mut owner, mut worker) = (Node::new(config(OWNER)), Node::new(config(WORKER)));
        owner.proc_started(WORKER, 0);
        worker.dial(OWNER);
        let (at_worker, at_owner) = (worker.connected(OWNER), owner.accepted());
        let port = owner.new_port();
        let mut pair = Self { owner, worker, at_owner, at_worker, port };
        pair.pump();
        pair
    }

    /// Delivers frames in both directions until none are left.
    ///
    /// Returns the owner's effects on segments.
    fn pump(&mut self) -> Vec<Effect> {
        let mut about_segments = Vec::new();
        while self.owner.has_effects() || self.worker.has_effects() {
            let effects: Vec<Effect> = self.owner.effects().collect();
            for effect in effects {
                match effect {
                    Effect::Transmit { frame, .. } => self.worker.receive(self.at_worker, frame),
                    Effect::Acquired { .. } | Effect::Released { .. } => {
                        about_segments.push(effect)
                    }
                    _ => {}
                }
            }
            for frame in self.sent_by_worker() {
                self.owner.receive(self.at_owner, frame);
            }
        }
        about_segments
    }

    /// Returns the frames that the worker sends.
    fn sent_by_worker(&mut self) -> Vec<Frame> {
        let frame = |effect| match effect {
            Effect::Transmit { frame, .. } => Some(frame),
            _ => None,
        };
        self.worker.effects().filter_map(frame).collect()
    }

    /// Sends a call from the owner to the worker, with a part in the owner's segment.
    fn call(&mut self) -> PortId {
        self.call_with(&[])
    }

    /// Like `call`, with a body after the part.
    fn call_with(&mut self, body: &[u8]) -> PortId {
        let spec = CallSpec {
            kind: Kind::Call,
            targets: Arc::new([Target { proc: WORKER, rank: 0 }]),
            port: self.port,
            meta_len: 0,
            part_count: 1,
            tail: [&part(OWNER), body].concat().into(),
            window: 8,
            timeout: None,
        };
        self.owner.call(&spec).expect("the mailbox has space")
    }

    /// Makes the worker take the call, reply with a part of `part_owner`, and release its part.
    fn reply(&mut self, part_owner: ProcId) {
        let mut got = Vec::new();
        self.worker.take_messages(self.port, 1, &mut got).expect("the mailbox is open");
        self.worker.reply(&got[0].head, 0, (0, 1), part(part_owner));
        self.worker.release(OWNER, SEGMENT, GENERATION);
    }
}

fn part(owner: ProcId) -> Bytes {
    let part = Part { owner, segment: SEGMENT, generation: GENERATION, offset: 0, len: 64 };
    Bytes::copy_from_slice(&part.encode())
}

fn called() -> (Pair, PortId) {
    let mut pair = Pair::new();
    pair.worker.open_mailbox(pair.port, 8);
    let reply_port = pair.call();
    assert_eq!(pair.pump(), [], "nothing is held but by the worker");
    (pair, reply_port)
}

#[test]
fn the_owner_acquires_returned_parts_before_the_worker_releases_them() {
    let (mut pair, reply_port) = called();
    pair.reply(OWNER);
    assert_eq!(pair.pump(), [ACQUIRED, released_by(WORKER)]);
    let mut replies: Vec<Reply> = Vec::new();
    pair.owner.take_replies(reply_port, &mut replies);
    assert_eq!(replies[0].frame.segment_refs().len(), 1);
    pair.owner.release(OWNER, SEGMENT, GENERATION);
    assert_eq!(pair.pump(), [released_by(OWNER)], "as whoever opened it does in the end");
}

#[test]
fn a_reply_in_a_segment_of_the_worker_acquires_no_segment_of_the_owner() {
    let (mut pair, _) = called();
    pair.reply(WORKER);
    assert_eq!(pair.pump(), [released_by(WORKER)]);
}

#[test]
fn a_reply_without_a_caller_is_released_immediately() {
    let (mut pair, reply_port) = called();
    pair.reply(OWNER);
    pair.owner.cancel(reply_port);
    assert_eq!(pair.pump(), [ACQUIRED, released_by(OWNER), released_by(WORKER)]);
}

#[test]
fn a_reply_that_is_not_received_is_released_with_its_call() {
    for is_cancelled in [true, false] {
        let (mut pair, reply_port) = called();
        pair.reply(OWNER);
        assert_eq!(pair.pump(), [ACQUIRED, released_by(WORKER)]);
        if is_cancelled {
            pair.owner.cancel(reply_port);
        } else {
            pair.owner.forget(reply_port);
        }
        assert_eq!(pair.pump(), [released_by(OWNER)]);
    }
}

#[test]
fn a_duplicated_reply_is_acquired_once() {
    let (mut pair, _) = called();
    pair.reply(OWNER);
    for frame in pair.sent_by_worker() {
        pair.owner.receive(pair.at_owner, frame.clone());
        pair.owner.receive(pair.at_owner, frame);
    }
    assert_eq!(pair.pump(), [ACQUIRED, released_by(WORKER)]);
}

#[test]
fn a_cancelled_call_is_released() {
    for is_open in [true, false] {
        let mut pair = Pair::new();
        if is_open {
            pair.worker.open_mailbox(pair.port, 8);
        }
        let reply_port = pair.call();
        assert_eq!(pair.pump(), [], "it waits for its receiver, or for the spawn of it");
        pair.owner.cancel(reply_port);
        assert_eq!(pair.pump(), [released_by(WORKER)], "with a mailbox: {is_open}");
    }
}

#[test]
fn a_refused_call_is_released() {
    let (mut pair, _) = called();
    pair.worker.close_mailbox(pair.port, Closed { code: 1, detail: Bytes::new() });
    assert_eq!(pair.pump(), [released_by(WORKER)]);
}

/// Returns the dropped messages that were reported to the agent of a process.
fn dropped_at(node: &mut Node) -> Vec<Frame> {
    let mut told = Vec::new();
    node.take_messages(PortId::AGENT, 9, &mut told).expect("an agent takes messages");
    told
}

#[test]
fn the_agent_is_notified_of_a_dropped_message_that_carries_ports() {
    for body in [&b"nothing"[..], &[&b"behind"[..], &PORT_MARK, b"label"].concat()] {
        let carries = body.len() > PORT_MARK.len();
        let mut pair = Pair::new();
        pair.worker.open_mailbox(PortId::AGENT, 1 << 31);
        pair.worker.open_mailbox(pair.port, 8);
        pair.call_with(body);
        pair.pump();
        assert_eq!(dropped_at(&mut pair.worker), [], "it waits in its mailbox");
        pair.worker.close_mailbox(pair.port, Closed { code: 1, detail: Bytes::new() });
        assert_eq!(pair.pump(), [released_by(WORKER)], "and what it holds is given back once");
        let told = dropped_at(&mut pair.worker);
        assert_eq!(told.len(), usize::from(carries), "{body:?}");
        for frame in told {
            assert_eq!((frame.head.to.port, frame.head.part_count), (pair.port, 0));
            assert_eq!(frame.tail, body);
        }
    }
}
