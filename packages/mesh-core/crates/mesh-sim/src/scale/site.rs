//! One process of a large world: a real [`Node`], at most one actor, and a queue before its core.

use super::fabric::WireId;
use super::shape::Shape;
use crate::message::{Errand, Life, Work, pack};
use crate::oracle::{Oracle, value_of};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::node::{Effect, LinkId, Node, NodeConfig};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

/// Where every actor of the world listens.
pub const MESH: PortId = PortId(1 << 30);
/// Messages that are taken out of a mailbox at once.
const BATCH: usize = 16;
/// Bytes that may wait for a process.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// What came to a process and waits until it has time.
#[derive(Debug)]
pub enum Job {
    /// Another process has connected.
    Accept(WireId),
    /// A frame.
    Frame(WireId, Frame),
    /// A connection is gone.
    Closed(WireId),
}

/// What a process wants from the world.
#[derive(Debug)]
pub enum Want {
    /// Send a frame.
    Send(WireId, Frame),
    /// Connect to a process after a while.
    Dial(ProcId, Duration),
    /// Close a connection.
    Close(WireId),
    /// The program is to look at its answers.
    Look(PortId),
    /// The program is to tell everybody that a host has died.
    HostDied(HostId),
}

/// What a process sees while it acts.
pub struct Scene<'a> {
    /// When it acts, after what it had to do before.
    pub at: u64,
    /// What running one endpoint takes.
    pub endpoint_ns: u64,
    /// What there is.
    pub shape: &'a Shape,
    /// Who checks.
    pub oracle: &'a mut Oracle,
    /// When each message has reached its last actor so far, by tag.
    pub reached: &'a mut Vec<u64>,
    /// What it wants.
    pub wants: &'a mut Vec<Want>,
}

/// A process.
#[derive(Debug)]
pub struct Site {
    /// Where it is.
    pub proc: ProcId,
    life: Life,
    /// Its state machine.
    pub node: Node,
    has_actor: bool,
    /// Its connections, in the order of the numbers of their links.
    pub wires: Vec<WireId>,
    /// What waits until it has time.
    pub inbox: VecDeque<Job>,
    /// When it has done all that it began.
    pub free_at: u64,
    /// It will look at its inbox then.
    pub is_waking: bool,
    /// When it asked to be told the time.
    pub tick_at: Option<u64>,
}

impl Site {
    /// A process that has just started.
    pub fn new(shape: &Shape, proc: ProcId) -> Self {
        let node = Node::new(NodeConfig {
            me: proc,
            incarnation: 0,
            job: JobId([7; 16]),
            token: [9; 32],
            backlog_bytes_max: BACKLOG_BYTES_MAX,
        });
        Self {
            proc,
            life: shape.life(proc),
            node,
            has_actor: false,
            wires: Vec::new(),
            inbox: VecDeque::new(),
            free_at: 0,
            is_waking: false,
            tick_at: None,
        }
    }

    /// Notes which connection a new link is.
    pub fn has_link(&mut self, link: LinkId, wire: WireId) {
        self.wires.push(wire);
        assert_eq!(link.0 as usize, self.wires.len(), "links are numbered one by one");
    }

    fn wire(&self, link: LinkId) -> WireId {
        self.wires[link.0 as usize - 1]
    }

    /// Gives back memory that is not needed now: most processes do nothing most of the time.
    pub fn trim(&mut self) {
        self.node.trim();
        self.inbox.shrink_to_fit();
    }

    /// Does what its node wants to have done; runs its actor.
    pub fn settle(&mut self, scene: &mut Scene<'_>) {
        while self.node.has_effects() {
            let effects: Vec<Effect> = self.node.effects().collect();
            for effect in effects {
                match effect {
                    Effect::Ready(PortId::AGENT) => self.obey(scene),
                    Effect::Ready(MESH) => self.run_actor(scene),
                    Effect::Ready(port) => scene.wants.push(Want::Look(port)),
                    Effect::Transmit { link, frame } => {
                        scene.wants.push(Want::Send(self.wire(link), frame));
                    }
                    Effect::Connect { peer, after } => scene.wants.push(Want::Dial(peer, after)),
                    Effect::Close { link } => scene.wants.push(Want::Close(self.wire(link))),
                    // Hosts of these worlds die by power cuts: their kernels acknowledge nothing.
                    Effect::Probe(host) => self.node.probed(host, None),
                    _ => {}
                }
            }
        }
    }

    /// Takes the messages of its actor, and answers each.
    fn run_actor(&mut self, scene: &mut Scene<'_>) {
        let mut frames = Vec::new();
        while self.has_actor && self.node.take_messages(MESH, BATCH, &mut frames).is_ok() {
            if frames.is_empty() {
                break;
            }
            for frame in frames.drain(..) {
                let Some(errand) = Errand::decode(&frame.tail[usize::from(frame.head.meta_len)..])
                else {
                    return scene.oracle.violated(|| format!("{} got {frame:?}", self.proc));
                };
                let rank = frame.head.rank;
                let here = scene.shape.rank(self.proc);
                scene.oracle.expect(rank == here, || {
                    format!("rank {here} got what is for rank {rank}: {errand:?}")
                });
                scene.oracle.received(self.life, MESH, rank, &errand);
                let reached = &mut scene.reached[errand.tag as usize];
                *reached = scene.at.max(*reached);
                scene.at += scene.endpoint_ns;
                self.node.answer(&frame.head, 0, (0, 0), pack(&[value_of(errand.tag, rank)]));
            }
        }
    }

    /// Does what others ask of this process, not of its actor.
    fn obey(&mut self, scene: &mut Scene<'_>) {
        let mut frames = Vec::new();
        if self.node.take_messages(PortId::AGENT, usize::MAX, &mut frames).is_err() {
            return;
        }
        for frame in frames {
            let head = &frame.head;
            match head.kind {
                Kind::Spawn => {
                    self.node.open_mailbox(MESH, u32::MAX);
                    self.has_actor = true;
                    self.node.watch(head.from.proc);
                    scene.oracle.opened(self.life, MESH, Duration::from_nanos(scene.at));
                    self.node.answer(head, 0, (0, 0), pack(&[0]));
                    self.run_actor(scene);
                }
                Kind::Died if head.flags == fault::HOST_DIED => {
                    scene.wants.push(Want::HostDied(head.from.proc.host));
                }
                Kind::Call => {
                    for word in frame.tail.as_chunks::<8>().0 {
                        let host = HostId(u64::from_le_bytes(*word) as u32);
                        self.node.host_gone(host, Bytes::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// The actor fails; whoever calls it from now on hears that.
    pub fn fail_actor(&mut self, oracle: &mut Oracle) -> bool {
        if !std::mem::take(&mut self.has_actor) {
            return false;
        }
        let closed = Closed { code: fault::ACTOR_FAILED, detail: Bytes::new() };
        self.node.close_mailbox(MESH, closed);
        oracle.closed(self.life, MESH);
        true
    }
}

/// What the controller's program says to every actor.
pub fn errand(tag: u64) -> Bytes {
    Errand { sender: 0, line: 0, serial: tag, tag, work: Work::Echo }.encode()
}
