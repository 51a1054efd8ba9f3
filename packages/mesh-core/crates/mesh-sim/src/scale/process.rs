//! One process of a large world: a real [`Node`], at most one actor, and a queue of pending work.

use super::fabric::WireId;
use super::shape::Shape;
use crate::message::{Life, Task, Work, pack};
use crate::oracle::{Oracle, value_of};
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::mailbox::Closed;
use mesh_runtime::node::{Effect, LinkId, Node, NodeConfig};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

/// The port of every actor of the world.
pub const MESH: PortId = PortId(1 << 30);
/// The maximum number of messages taken from a mailbox at a time.
const BATCH: usize = 16;
/// Bytes that may be queued for a process.
const BACKLOG_BYTES_MAX: usize = 64 << 20;

/// A packet that waits until the process is free.
#[derive(Debug)]
pub enum InboxItem {
    /// A connection from another process.
    Accept(WireId),
    /// A frame.
    Frame(WireId, Frame),
    /// The end of a connection.
    Closed(WireId),
}

/// A request of a process to the world.
#[derive(Debug)]
pub enum Request {
    /// Send a frame.
    Send(WireId, Frame),
    /// Connect to a process after a delay.
    Dial(ProcId, Duration),
    /// Close a connection.
    Close(WireId),
    /// Let the program check the replies on a port.
    CheckReplies(PortId),
    /// Let the program notify all hosts that a host has died.
    HostDied(HostId),
}

/// The parts of the world that a process can access while it acts.
pub struct Context<'a> {
    /// The time at which it acts, after its previous work.
    pub at: u64,
    /// The time to run one endpoint.
    pub endpoint_ns: u64,
    /// The parameters of the world.
    pub shape: &'a Shape,
    /// The oracle, which checks the invariants.
    pub oracle: &'a mut Oracle,
    /// The latest time at which each message has reached an actor, by tag.
    pub reached: &'a mut Vec<u64>,
    /// The requests of the process to the world.
    pub requests: &'a mut Vec<Request>,
}

/// A process.
#[derive(Debug)]
pub struct SimProcess {
    /// The id of the process.
    pub proc: ProcId,
    life: Life,
    /// The state machine.
    pub node: Node,
    has_actor: bool,
    /// The connections, in the order of their link numbers.
    pub wires: Vec<WireId>,
    /// Work that waits until the process is free.
    pub inbox: VecDeque<InboxItem>,
    /// The time at which the process has completed its current work.
    pub free_at: u64,
    /// Whether an event is scheduled that handles the inbox at that time.
    pub is_waking: bool,
    /// The time of the scheduled timer event.
    pub tick_at: Option<u64>,
}

impl SimProcess {
    /// Creates a process that has just started.
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

    /// Records the connection of a new link.
    pub fn has_link(&mut self, link: LinkId, wire: WireId) {
        self.wires.push(wire);
        assert_eq!(link.0 as usize, self.wires.len(), "links are numbered one by one");
    }

    fn wire(&self, link: LinkId) -> WireId {
        self.wires[link.0 as usize - 1]
    }

    /// Releases memory that is not needed now: most processes are idle most of the time.
    pub fn trim(&mut self) {
        self.node.trim();
        self.inbox.shrink_to_fit();
    }

    /// Carries out the effects of the node, and runs the actor.
    pub fn settle(&mut self, context: &mut Context<'_>) {
        while self.node.has_effects() {
            let effects: Vec<Effect> = self.node.effects().collect();
            for effect in effects {
                match effect {
                    Effect::Ready(PortId::AGENT) => self.handle_agent_messages(context),
                    Effect::Ready(MESH) => self.run_actor(context),
                    Effect::Ready(port) => context.requests.push(Request::CheckReplies(port)),
                    Effect::Transmit { link, frame } => {
                        context.requests.push(Request::Send(self.wire(link), frame));
                    }
                    Effect::Connect { peer, after } => {
                        context.requests.push(Request::Dial(peer, after))
                    }
                    Effect::Close { link } => {
                        context.requests.push(Request::Close(self.wire(link)))
                    }
                    // Hosts of these worlds die of power failures, so their kernels acknowledge
                    // nothing.
                    Effect::Probe(host) => self.node.probed(host, None),
                    _ => {}
                }
            }
        }
    }

    /// Takes the messages of the actor and replies to each.
    fn run_actor(&mut self, context: &mut Context<'_>) {
        let mut frames = Vec::new();
        while self.has_actor && self.node.take_messages(MESH, BATCH, &mut frames).is_ok() {
            if frames.is_empty() {
                break;
            }
            for frame in frames.drain(..) {
                let Some(task) = Task::decode(&frame.tail[usize::from(frame.head.meta_len)..])
                else {
                    return context.oracle.violated(|| format!("{} got {frame:?}", self.proc));
                };
                let rank = frame.head.rank;
                let here = context.shape.rank(self.proc);
                context.oracle.expect(rank == here, || {
                    format!("rank {here} got what is for rank {rank}: {task:?}")
                });
                context.oracle.received(self.life, MESH, rank, &task);
                let reached = &mut context.reached[task.tag as usize];
                *reached = context.at.max(*reached);
                context.at += context.endpoint_ns;
                self.node.reply(&frame.head, 0, (0, 0), pack(&[value_of(task.tag, rank)]));
            }
        }
    }

    /// Handles messages for the process rather than for its actor.
    fn handle_agent_messages(&mut self, context: &mut Context<'_>) {
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
                    context.oracle.opened(self.life, MESH, Duration::from_nanos(context.at));
                    self.node.reply(head, 0, (0, 0), pack(&[0]));
                    self.run_actor(context);
                }
                Kind::Died if head.flags == fault::HOST_DIED => {
                    context.requests.push(Request::HostDied(head.from.proc.host));
                }
                Kind::Call => {
                    for word in frame.tail.as_chunks::<8>().0 {
                        let host = HostId(u64::from_le_bytes(*word) as u32);
                        self.node.declare_host_dead(host, Bytes::new());
                    }
                }
                _ => {}
            }
        }
    }

    /// Fails the actor. Callers get a fault from now on. Returns false if there was no actor.
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

/// The payload of the controller's message to every actor.
pub fn task(tag: u64) -> Bytes {
    Task { sender: 0, line: 0, serial: tag, tag, work: Work::Echo }.encode()
}
