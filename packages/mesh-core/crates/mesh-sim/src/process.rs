//! One process of a world: a real [`Node`], a real [`Supervisor`], and a simulated program.
//!
//! The program plays the role of the layer above the runtime in a real process: it starts and stops
//! actors, runs their endpoints, and carries out the effects of the supervisor.
//!
//! # Layout
//! - `outbox`: messages that wait for capacity at their receiver;
//! - `actor`: endpoints and their replies;
//! - `agent`: starting, stopping and replacing actors and processes on behalf of others;
//! - `owner`: the meshes that actors of this process own;
//! - `client`: actions that programs take on their own initiative.

mod actor;
mod agent;
mod client;
mod outbox;
mod owner;

pub use client::Action;

use crate::directory::Directory;
use crate::message::Life;
use crate::oracle::Oracle;
use crate::plan::Plan;
use crate::rng::Rng;
use actor::{Actor, Job};
use agent::Slot;
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{Effect, HostWatch, Node, NodeConfig, Progress, Reply};
use mesh_runtime::supervise::{self, FailureId, Owner, Supervisor};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use outbox::OutgoingMessage;
use owner::{Mesh, Repair};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Each host with a number below this one monitors all other hosts, and all others monitor it.
/// Casts use trees between hosts that monitor each other.
const MONITORS: u32 = 3;
/// The heartbeat interval of a host.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long an agent may be silent while its machine acknowledges: longer than any stall.
const UNRESPONSIVE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of messages taken from a port at a time.
const BATCH: usize = 16;

/// The parts of the world that a process can access while it acts.
pub struct Context<'a> {
    /// The current virtual time.
    pub now: Duration,
    /// Randomness for program actions.
    pub rng: &'a mut Rng,
    /// The parameters of the world.
    pub plan: &'a Plan,
    /// The oracle, which checks the invariants.
    pub oracle: &'a mut Oracle,
    /// The meshes and processes of the world.
    pub directory: &'a mut Directory,
    /// The requests of the process to the world.
    pub requests: &'a mut Vec<Request>,
}

/// A request of a process to the world.
#[derive(Debug)]
pub enum Request {
    /// Deliver this event to the process after a delay.
    Schedule(Duration, Scheduled),
    /// Start a process in a slot of this host.
    Start {
        /// The slot.
        slot: u32,
        /// The incarnation of the new process.
        incarnation: u32,
    },
    /// Terminate this process immediately.
    Exit,
}

/// An event that a process scheduled for itself.
#[derive(Debug)]
pub enum Scheduled {
    /// Check a port on which something may have arrived.
    Run(PortId),
    /// Complete an endpoint.
    Finish(Job),
    /// Complete `__supervise__` of an owner.
    Decide(Owner, FailureId),
    /// Complete the cleanup of an actor.
    CleanedUp(PortId),
    /// Run the timers of the supervisor.
    SupervisorTick,
    /// Run the timers of the node.
    NodeTick,
}

/// The purpose of a pending call, which determines how its replies are handled.
#[derive(Debug)]
enum Wait {
    /// A call of a program.
    Client { tag: u64, is_cast: bool },
    /// A call of an endpoint, which replies to its own caller when it gets the reply.
    Nested { tag: u64, job: Job },
    /// The spawn of the ranks of a new mesh.
    Spawn { child: supervise::ChildId },
    /// The stop of a mesh.
    Stop { child: supervise::ChildId },
    /// A step in the recovery of a rank.
    Repair(Repair),
    /// A call whose replies are ignored.
    Ignored,
}

/// A live process.
#[derive(Debug)]
pub struct Process {
    life: Life,
    id: ProcId,
    incarnation: u32,
    node: Node,
    supervisor: Supervisor,
    actors: BTreeMap<PortId, Actor>,
    meshes: BTreeMap<supervise::ChildId, Mesh>,
    waits: BTreeMap<PortId, Wait>,
    outbox: BTreeMap<PortId, VecDeque<OutgoingMessage>>,
    /// The last sequence number of each message stream.
    serials: BTreeMap<u64, u64>,
    actors_begun: u64,
    failures_begun: u64,
    /// The last incarnation that was reported dead, by process.
    dead: BTreeMap<ProcId, u32>,
    /// The processes of this host, if this process is its agent.
    slots: BTreeMap<u32, Slot>,
    runs: BTreeSet<PortId>,
    node_tick: Option<Duration>,
    supervision: Vec<supervise::Effect>,
    is_root_ended: bool,
}

impl Process {
    /// Creates a process that has just started and knows no other processes.
    pub fn new(life: Life, id: ProcId, incarnation: u32, plan: &Plan) -> Self {
        let mut node = Node::new(NodeConfig {
            me: id,
            incarnation,
            job: JobId([7; 16]),
            token: [9; 32],
            backlog_bytes_max: plan.backlog_bytes_max,
        });
        node.open_mailbox(PortId::SUPERVISION, u32::MAX);
        node.set_fanout(plan.fanout);
        if id.slot == 0 {
            let is_listener = |host: &u32| *host < MONITORS || id.host.0 < MONITORS;
            for host in (0..plan.hosts).filter(is_listener).filter(|host| *host != id.host.0) {
                let watch = HostWatch {
                    unresponsive_timeout: UNRESPONSIVE_TIMEOUT,
                    ..HostWatch::strict(HEARTBEAT, Bytes::new())
                };
                node.monitor_host(HostId(host), watch);
            }
        } else {
            node.dial(id.host.agent());
        }
        Self {
            life,
            id,
            incarnation,
            node,
            supervisor: Supervisor::new(supervise::Config::default()),
            actors: BTreeMap::new(),
            meshes: BTreeMap::new(),
            waits: BTreeMap::new(),
            outbox: BTreeMap::new(),
            serials: BTreeMap::new(),
            actors_begun: 0,
            failures_begun: 0,
            dead: BTreeMap::new(),
            slots: BTreeMap::new(),
            runs: BTreeSet::new(),
            node_tick: None,
            supervision: Vec::new(),
            is_root_ended: false,
        }
    }

    /// The slot of the process.
    pub fn id(&self) -> ProcId {
        self.id
    }

    /// The number of processes that previously occupied the slot.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// The state machine, to which the world delivers frames and connection events.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Advances the clock of the node and handles an event that is due.
    pub fn run_scheduled(&mut self, scheduled: Scheduled, context: &mut Context<'_>) {
        self.node.advance(context.now);
        match scheduled {
            Scheduled::Run(port) => {
                self.runs.remove(&port);
                self.run(port, context);
            }
            Scheduled::Finish(job) => self.finish(job, context),
            Scheduled::Decide(owner, failure) => self.decide(owner, failure, context),
            Scheduled::CleanedUp(port) => self.cleaned_up(port, context),
            Scheduled::SupervisorTick => self.supervise(supervise::Event::Tick, context),
            Scheduled::NodeTick => self.node_tick = None,
        }
    }

    /// Carries out the effects of the node, except those of connections, which are appended to
    /// `links`.
    pub fn settle(&mut self, links: &mut Vec<Effect>, context: &mut Context<'_>) {
        loop {
            let effects: Vec<Effect> = self.node.effects().collect();
            if effects.is_empty() {
                break;
            }
            let mut is_credited = false;
            for effect in effects {
                match effect {
                    Effect::Ready(port) => self.schedule(port, context),
                    Effect::Credited => is_credited = true,
                    // The engine is responsible for segments; deaths are reported through the
                    // agent's mailbox.
                    Effect::Released { .. } | Effect::PeerDied(_) => {}
                    // No machine of these worlds loses power, so each kernel acknowledges
                    // immediately.
                    Effect::Probe(host) => {
                        context.oracle.tally.probes += 1;
                        self.node.probed(host, Some(Duration::ZERO));
                    }
                    effect => links.push(effect),
                }
            }
            if is_credited {
                self.send_waiting(context);
            }
        }
        let deadline = self.node.next_deadline();
        if let Some(at) = deadline
            && self.node_tick.is_none_or(|tick| at < tick)
        {
            self.node_tick = Some(at);
            let after = at.saturating_sub(context.now);
            context.requests.push(Request::Schedule(after, Scheduled::NodeTick));
        }
    }

    /// Schedules the consumer of a port after a short delay.
    fn schedule(&mut self, port: PortId, context: &mut Context<'_>) {
        if self.runs.insert(port) {
            let after = Duration::from_nanos(context.rng.between(500, 50_000));
            context.requests.push(Request::Schedule(after, Scheduled::Run(port)));
        }
    }

    /// Runs the consumer of a port.
    fn run(&mut self, port: PortId, context: &mut Context<'_>) {
        if self.waits.contains_key(&port) {
            return self.take_replies(port, context);
        }
        let max = match self.actors.get(&port) {
            Some(actor) => actor.free_capacity(),
            None if port.0 < PortId::FIRST_FREE => BATCH,
            // The spawn opens the mailbox; the actor starts when the agent handles the spawn.
            None => 0,
        };
        let mut frames = Vec::new();
        if max == 0 || self.node.take_messages(port, max, &mut frames).is_err() {
            return;
        }
        for frame in frames {
            match (port, frame.head.kind) {
                (PortId::AGENT, _) => self.handle_agent_message(&frame, context),
                (PortId::SUPERVISION, _) => self.handle_failure_report(&frame, context),
                (_, Kind::Call | Kind::Post) => self.handle_message(port, &frame, context),
                _ => context.oracle.violated(|| format!("{:?} in a mailbox", frame.head)),
            }
        }
        let has_capacity = self.actors.get(&port).is_none_or(|actor| actor.free_capacity() > 0);
        if max > 0 && has_capacity && self.node.mailbox_len(port) > 0 {
            self.schedule(port, context);
        }
    }

    fn take_replies(&mut self, reply_port: PortId, context: &mut Context<'_>) {
        if !self.node.is_ready(reply_port) {
            return;
        }
        let mut replies = Vec::new();
        let progress = self.node.take_replies(reply_port, &mut replies);
        let Some(wait) = self.waits.remove(&reply_port) else { return };
        for reply in &replies {
            self.observe(reply, context);
        }
        let is_complete = progress == Progress::Complete;
        match wait {
            Wait::Client { tag, is_cast: true } if !is_complete => {
                self.client_replied(tag, &replies, context);
                self.waits.insert(reply_port, wait);
            }
            _ if !is_complete => context.oracle.violated(|| format!("{wait:?} woken too early")),
            Wait::Client { tag, is_cast } => {
                self.client_replied(tag, &replies, context);
                context.oracle.call_ended(tag);
                context.oracle.tally.casts += u64::from(is_cast);
            }
            Wait::Nested { tag, job } => {
                self.client_replied(tag, &replies, context);
                context.oracle.call_ended(tag);
                self.finish(job, context);
            }
            Wait::Spawn { child } => self.spawned(child, &replies, context),
            Wait::Stop { child } => self.mesh_stopped(child, context),
            Wait::Repair(repair) => self.repaired(repair, &replies[0], context),
            Wait::Ignored => {}
        }
    }

    /// Notifies the supervisor that a caller received the failure that a fault names.
    fn observe(&mut self, reply: &Reply, context: &mut Context<'_>) {
        if matches!(reply.code, fault::PROC_DIED | fault::ACTOR_FAILED)
            && let Some(failure) = failure_in(&reply.frame)
        {
            self.supervise(supervise::Event::Observed { failure }, context);
        }
    }

    /// Allocates an id for a failure that occurs in this process.
    fn new_failure(&mut self) -> FailureId {
        self.failures_begun += 1;
        FailureId(u64::from(self.life) << 24 | self.failures_begun)
    }

    /// Checks this process when a world with `hosts` hosts is quiescent.
    pub fn check_quiet(&self, hosts: u32, oracle: &mut Oracle) {
        let id = self.id;
        // The machines of these worlds never fail, however long their agents are stopped.
        for host in (0..hosts).map(HostId) {
            let is_alive = !self.node.is_host_dead(host);
            oracle.expect(is_alive, || format!("{id} has declared {host:?} dead"));
        }
        oracle.expect(self.waits.is_empty(), || format!("{id} waits for {:?}", self.waits));
        for (queue, messages) in &self.outbox {
            let first = messages.front();
            oracle.violated(|| {
                let why = first.and_then(|message| message.refused.clone());
                format!("{id} cannot send {} to {queue:?}: {why:?}: {first:?}", messages.len())
            });
        }
        let open = self.supervisor.open_count();
        oracle.expect(open == 0, || format!("{id} has {open} failures that came to no end"));
        let waits = self.node.waits().count();
        oracle.expect(waits == 0, || format!("the node of {id} waits for {waits} replies"));
        for (port, actor) in &self.actors {
            let queued = self.node.mailbox_len(*port);
            let is_idle = actor.is_idle();
            oracle.expect(queued == 0 && is_idle, || {
                format!("actor {port:?} of {id}: {queued} messages queued, {actor:?}")
            });
        }
    }

    /// The actors of this process with the process, incarnation and port of their owners.
    pub fn ownership(&self) -> impl Iterator<Item = (PortId, ProcId, u32, PortId)> + '_ {
        self.actors.iter().map(|(port, actor)| {
            let (owner, incarnation, owner_port) = actor.owner();
            (*port, owner, incarnation, owner_port)
        })
    }

    /// Whether the owner of a remote mesh is in this process and still has the mesh.
    pub fn owns(&self, owner: PortId, mesh: PortId) -> bool {
        let is_owner_here = owner == supervise::ROOT || self.actors.contains_key(&owner);
        let mut meshes = self.meshes.values();
        is_owner_here && meshes.any(|owned| owned.port() == mesh && owned.owner() == owner)
    }

    /// Whether the program has ended and none of its meshes remains in this process.
    pub fn is_root_ended(&self) -> bool {
        self.is_root_ended && self.meshes.is_empty()
    }
}

/// The failure that the detail of a fault or death names.
fn failure_in(frame: &Frame) -> Option<FailureId> {
    let word: &[u8; 8] = frame.tail.as_ref().try_into().ok()?;
    Some(FailureId(u64::from_le_bytes(*word)))
}

/// The detail of a fault that names a failure.
fn detail_of(failure: FailureId) -> Bytes {
    Bytes::copy_from_slice(&failure.0.to_le_bytes())
}
