//! One process of a world: a real [`Node`] and a real [`Supervisor`], and the program around them.
//!
//! The program does what the layer above the runtime does in a real process: it starts and stops
//! actors, runs their endpoints, and carries out what the supervisor wants.
//!
//! # Layout
//! - `outbox`: messages that wait for room at their receiver;
//! - `actor`: endpoints and what they answer;
//! - `agent`: starts, stops and replaces on behalf of others;
//! - `owner`: the meshes that actors of this process own;
//! - `client`: what programs do by themselves.

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
use mesh_runtime::node::{Answer, Effect, HostWatch, Node, NodeConfig, Progress};
use mesh_runtime::supervise::{self, FailureId, Owner, Supervisor};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use outbox::Letter;
use owner::{Mesh, Repair};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Agents of hosts below this one listen for all others, and these for them: where both ends do,
/// casts go down trees.
const LISTENERS: u32 = 3;
/// How often a host says that it is alive.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long an agent may be silent while its machine acknowledges: longer than any stall.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages that a port takes out at once.
const BATCH: usize = 16;

/// What a process sees of its world while it acts.
pub struct Scene<'a> {
    /// The time.
    pub now: Duration,
    /// Chance, for what programs do.
    pub rng: &'a mut Rng,
    /// What kind of world it is.
    pub plan: &'a Plan,
    /// Who checks.
    pub oracle: &'a mut Oracle,
    /// Who and what there is.
    pub directory: &'a mut Directory,
    /// What the world has to do for the process.
    pub requests: &'a mut Vec<Request>,
}

/// What a process wants from its world.
#[derive(Debug)]
pub enum Request {
    /// Tell the process this after a while.
    Later(Duration, Later),
    /// Start a process in a slot of this host.
    Start {
        /// The slot.
        slot: u32,
        /// Its incarnation.
        incarnation: u32,
    },
    /// This process ends now.
    Exit,
}

/// What a process has to be told at a later time.
#[derive(Debug)]
pub enum Later {
    /// Something may have come in on a port.
    Run(PortId),
    /// An endpoint is done.
    Finish(Job),
    /// `__supervise__` of an owner is done.
    Judge(Owner, FailureId),
    /// An actor has cleaned up.
    CleanedUp(PortId),
    /// The supervisor asked for the time.
    SupervisorTick,
    /// The node asked for the time.
    NodeTick,
}

/// What a process does with the answers of a call.
#[derive(Debug)]
enum Wait {
    /// A program called.
    Client { tag: u64, is_cast: bool },
    /// An endpoint called and answers when it has been answered.
    Nested { tag: u64, job: Job },
    /// Ranks of a new mesh.
    Spawn { child: supervise::ChildId },
    /// A mesh that is being stopped.
    Stop { child: supervise::ChildId },
    /// A rank that is being brought back.
    Repair(Repair),
    /// Nobody looks at the answers.
    Ignored,
}

/// A process that lives.
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
    outbox: BTreeMap<PortId, VecDeque<Letter>>,
    /// The last place given out in each line of messages.
    serials: BTreeMap<u64, u64>,
    actors_begun: u64,
    failures_begun: u64,
    /// The incarnation that was last said to have died, by process.
    dead: BTreeMap<ProcId, u32>,
    /// The processes of this host, when this is its agent.
    slots: BTreeMap<u32, Slot>,
    runs: BTreeSet<PortId>,
    node_tick: Option<Duration>,
    supervision: Vec<supervise::Effect>,
    is_root_ended: bool,
}

impl Process {
    /// A process that has just started and knows nobody.
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
            let is_listener = |host: &u32| *host < LISTENERS || id.host.0 < LISTENERS;
            for host in (0..plan.hosts).filter(is_listener).filter(|host| *host != id.host.0) {
                let watch = HostWatch {
                    patience: PATIENCE,
                    ..HostWatch::impatient(HEARTBEAT, Bytes::new())
                };
                node.expect_host(HostId(host), watch);
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

    /// Its place.
    pub fn id(&self) -> ProcId {
        self.id
    }

    /// How many processes had the place before.
    pub fn incarnation(&self) -> u32 {
        self.incarnation
    }

    /// Its state machine, for the world to bring frames and links to.
    pub fn node(&mut self) -> &mut Node {
        &mut self.node
    }

    /// Does what is due, then what follows from it; returns what the links have to carry.
    pub fn later(&mut self, later: Later, scene: &mut Scene<'_>) {
        self.node.advance(scene.now);
        match later {
            Later::Run(port) => {
                self.runs.remove(&port);
                self.run(port, scene);
            }
            Later::Finish(job) => self.finish(job, scene),
            Later::Judge(owner, failure) => self.judge(owner, failure, scene),
            Later::CleanedUp(port) => self.cleaned_up(port, scene),
            Later::SupervisorTick => self.supervise(supervise::Event::Tick, scene),
            Later::NodeTick => self.node_tick = None,
        }
    }

    /// Carries out what the node wants, except what the links have to do: that goes to `links`.
    pub fn settle(&mut self, links: &mut Vec<Effect>, scene: &mut Scene<'_>) {
        loop {
            let effects: Vec<Effect> = self.node.effects().collect();
            if effects.is_empty() {
                break;
            }
            let mut is_credited = false;
            for effect in effects {
                match effect {
                    Effect::Ready(port) => self.schedule(port, scene),
                    Effect::Credited => is_credited = true,
                    // Segments are the engine's; deaths come through the agent's mailbox.
                    Effect::Released { .. } | Effect::Buried(_) => {}
                    // No machine of these worlds loses its power: each acknowledges at once.
                    Effect::Probe(host) => {
                        scene.oracle.tally.probes += 1;
                        self.node.probed(host, Some(Duration::ZERO));
                    }
                    effect => links.push(effect),
                }
            }
            if is_credited {
                self.send_waiting(scene);
            }
        }
        let deadline = self.node.next_deadline();
        if let Some(at) = deadline
            && self.node_tick.is_none_or(|tick| at < tick)
        {
            self.node_tick = Some(at);
            let after = at.saturating_sub(scene.now);
            scene.requests.push(Request::Later(after, Later::NodeTick));
        }
    }

    /// Wakes the consumer of a port, some time soon.
    fn schedule(&mut self, port: PortId, scene: &mut Scene<'_>) {
        if self.runs.insert(port) {
            let after = Duration::from_nanos(scene.rng.between(500, 50_000));
            scene.requests.push(Request::Later(after, Later::Run(port)));
        }
    }

    /// The consumer of a port looks at it.
    fn run(&mut self, port: PortId, scene: &mut Scene<'_>) {
        if self.waits.contains_key(&port) {
            return self.take_answers(port, scene);
        }
        let max = match self.actors.get(&port) {
            Some(actor) => actor.room(),
            None if port.0 < PortId::FIRST_FREE => BATCH,
            // The mailbox opens with the spawn; its actor comes when the agent gets to it.
            None => 0,
        };
        let mut frames = Vec::new();
        if max == 0 || self.node.take_messages(port, max, &mut frames).is_err() {
            return;
        }
        for frame in frames {
            match (port, frame.head.kind) {
                (PortId::AGENT, _) => self.agent_takes(&frame, scene),
                (PortId::SUPERVISION, _) => self.supervision_takes(&frame, scene),
                (_, Kind::Call | Kind::Post) => self.actor_takes(port, &frame, scene),
                _ => scene.oracle.violated(|| format!("{:?} in a mailbox", frame.head)),
            }
        }
        let has_room = self.actors.get(&port).is_none_or(|actor| actor.room() > 0);
        if max > 0 && has_room && self.node.mailbox_len(port) > 0 {
            self.schedule(port, scene);
        }
    }

    fn take_answers(&mut self, reply: PortId, scene: &mut Scene<'_>) {
        if !self.node.is_ready(reply) {
            return;
        }
        let mut answers = Vec::new();
        let progress = self.node.take_answers(reply, &mut answers);
        let Some(wait) = self.waits.remove(&reply) else { return };
        for answer in &answers {
            self.observe(answer, scene);
        }
        let is_complete = progress == Progress::Complete;
        match wait {
            Wait::Client { tag, is_cast: true } if !is_complete => {
                self.client_answered(tag, &answers, scene);
                self.waits.insert(reply, wait);
            }
            _ if !is_complete => scene.oracle.violated(|| format!("{wait:?} woken too early")),
            Wait::Client { tag, is_cast } => {
                self.client_answered(tag, &answers, scene);
                scene.oracle.call_ended(tag);
                scene.oracle.tally.casts += u64::from(is_cast);
            }
            Wait::Nested { tag, job } => {
                self.client_answered(tag, &answers, scene);
                scene.oracle.call_ended(tag);
                self.finish(job, scene);
            }
            Wait::Spawn { child } => self.spawned(child, &answers, scene),
            Wait::Stop { child } => self.mesh_stopped(child, scene),
            Wait::Repair(repair) => self.repaired(repair, &answers[0], scene),
            Wait::Ignored => {}
        }
    }

    /// A fault that names a failure tells the supervisor that somebody was given it.
    fn observe(&mut self, answer: &Answer, scene: &mut Scene<'_>) {
        if matches!(answer.code, fault::PROC_DIED | fault::ACTOR_FAILED)
            && let Some(failure) = failure_in(&answer.frame)
        {
            self.supervise(supervise::Event::Observed { failure }, scene);
        }
    }

    /// A new number for something that goes wrong here.
    fn new_failure(&mut self) -> FailureId {
        self.failures_begun += 1;
        FailureId(u64::from(self.life) << 24 | self.failures_begun)
    }

    /// What is not in order when nothing moves any more in a world of so many hosts.
    pub fn check_quiet(&self, hosts: u32, oracle: &mut Oracle) {
        let id = self.id;
        // The machines of these worlds never fail, however long their agents are stopped.
        for host in (0..hosts).map(HostId) {
            let is_alive = !self.node.is_host_dead(host);
            oracle.expect(is_alive, || format!("{id} has declared {host:?} dead"));
        }
        oracle.expect(self.waits.is_empty(), || format!("{id} waits for {:?}", self.waits));
        for (queue, letters) in &self.outbox {
            let first = letters.front();
            oracle.violated(|| {
                let why = first.and_then(|letter| letter.refused.clone());
                format!("{id} cannot send {} to {queue:?}: {why:?}: {first:?}", letters.len())
            });
        }
        let open = self.supervisor.open_count();
        oracle.expect(open == 0, || format!("{id} has {open} failures that came to no end"));
        let waits = self.node.waits().count();
        oracle.expect(waits == 0, || format!("the node of {id} waits for {waits} answers"));
        for (port, actor) in &self.actors {
            let queued = self.node.mailbox_len(*port);
            let is_idle = actor.is_idle();
            oracle.expect(queued == 0 && is_idle, || {
                format!("actor {port:?} of {id}: {queued} messages queued, {actor:?}")
            });
        }
    }

    /// The actors here and who owns each: process, incarnation and port.
    pub fn ownership(&self) -> impl Iterator<Item = (PortId, ProcId, u32, PortId)> + '_ {
        self.actors.iter().map(|(port, actor)| {
            let (owner, incarnation, owner_port) = actor.owner();
            (*port, owner, incarnation, owner_port)
        })
    }

    /// Whether the owner of an actor elsewhere is here and still has the mesh.
    pub fn owns(&self, owner: PortId, mesh: PortId) -> bool {
        let is_owner_here = owner == supervise::ROOT || self.actors.contains_key(&owner);
        let mut meshes = self.meshes.values();
        is_owner_here && meshes.any(|owned| owned.port() == mesh && owned.owner() == owner)
    }

    /// Whether the program ended and nothing of it is left here.
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
