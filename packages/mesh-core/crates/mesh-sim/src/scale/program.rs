//! The controller of a large world: it spawns, casts and gathers while failures are injected.

use super::fabric::Load;
use super::process::{MESH, task};
use super::shape::Shape;
use super::world::{Death, World};
use crate::heap;
use crate::message::unpack;
use crate::rng::Rng;
use bytes::Bytes;
use mesh_runtime::fault;
use mesh_runtime::node::{CallSpec, Reply, Target};
use mesh_wire::frame::Kind;
use mesh_wire::id::{PortId, ProcId};
use std::sync::Arc;
use std::time::Duration;

/// The maximum time that the program waits for a single event.
const WAIT_NS_MAX: u64 = 60_000_000_000;
/// The time that all processes need to connect.
const BOOT_NS: u64 = 2_000_000_000;
/// The time for the messages that make the sessions of an uneven world different.
const UNEVEN_NS: u64 = 500_000_000;
/// An exclusive upper bound for the number of these messages to one host.
const UNEVEN_MESSAGES_MAX: u64 = 8;
/// Casts before the measured one: the first casts open the links of the tree.
const WARM_CASTS: usize = 2;
/// The number of bursts of failures. Each burst covers `CASTS_PER_BURST` casts.
const BURSTS: u32 = 2;
const CASTS_PER_BURST: u32 = 3;
/// The time between two casts of a burst.
const CAST_GAP_NS: u64 = 2_000_000;

/// The measurements of a message to all actors.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cast {
    /// The time from the call until the last actor has received the message.
    pub reached_ns: u64,
    /// The time from the call until the last reply has arrived.
    pub gathered_ns: u64,
    /// Number of replies that are faults: of failed actors, dead processes, dead hosts, and others.
    pub faults: [u32; 4],
    /// The traffic on links between hosts during the call.
    pub load: Load,
}

/// Memory usage in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Memory {
    /// After all processes have connected.
    pub booted: usize,
    /// After all actors have been spawned and called.
    pub idle: usize,
    /// The maximum.
    pub peak: usize,
    /// The share of the oracle in `idle`, which real processes do not need.
    pub oracle: usize,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The shape of the world.
    pub shape: Shape,
    /// The hash of the trace, which is identical for every run of this shape.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// The duration of the run in virtual time.
    pub took: Duration,
    /// The time until all processes had connected to the controller or their agents.
    pub booted_ns: u64,
    /// The spawn.
    pub spawn: Cast,
    /// The first cast, which opens links.
    pub first: Cast,
    /// A cast without faults.
    pub steady: Cast,
    /// The casts during which failures occurred, and one afterwards.
    pub with_failures: Vec<Cast>,
    /// Number of actors, processes and hosts that died.
    pub died: [u32; 3],
    /// Memory usage.
    pub memory: Memory,
    /// The violated invariants; empty if the run passed.
    pub violations: Vec<String>,
}

/// A message to all actors that still waits for replies.
#[derive(Debug)]
struct Open {
    tag: u64,
    begun: u64,
    reply_port: PortId,
    cast: Option<Cast>,
}

#[derive(Debug)]
struct Program {
    world: World,
    targets: Arc<[Target]>,
    open: Vec<Open>,
    /// Whether each rank was chosen to die. A fault is valid for no other rank.
    is_dying: Vec<bool>,
}

/// Runs the world of a shape to its end.
pub fn run(shape: Shape) -> Report {
    let heap_before = heap::in_use();
    heap::take_peak();
    let mut program = Program {
        world: World::new(shape),
        targets: shape.targets(),
        open: Vec::new(),
        is_dying: vec![false; shape.actors as usize],
    };
    program.world.boot();
    let booted_ns = program.boot();
    let booted = heap::in_use() - heap_before;
    let spawn = program.spawn();
    let warm: Vec<Cast> = (0..WARM_CASTS).map(|_| program.cast_alone()).collect();
    let steady = program.cast_alone();
    program.world.trim();
    let mut memory = Memory { booted, idle: heap::in_use() - heap_before, ..Memory::default() };
    let with_failures = program.cast_with_failures();
    memory.peak = heap::take_peak().saturating_sub(heap_before);
    program.world.oracle.check_quiet();
    let Program { mut world, .. } = program;
    let before = heap::in_use();
    let oracle = std::mem::take(&mut world.oracle);
    let violations = oracle.violations().to_vec();
    drop(oracle);
    memory.oracle = before.saturating_sub(heap::in_use());
    let count = |is_it: fn(&Death) -> bool| world.died.iter().filter(|one| is_it(one)).count();
    Report {
        shape,
        hash: world.trace.hash(),
        events: world.events,
        took: Duration::from_nanos(world.now()),
        booted_ns,
        spawn,
        first: warm[0],
        steady,
        with_failures,
        died: [
            count(|death| matches!(death, Death::Actor(_))) as u32,
            count(|death| matches!(death, Death::Proc(_))) as u32,
            count(|death| matches!(death, Death::Host(_))) as u32,
        ],
        memory,
        violations,
    }
}

impl Program {
    /// Waits until every host is connected. Returns the time at which the last one was.
    fn boot(&mut self) -> u64 {
        self.world.run(BOOT_NS, |_| false);
        let shape = self.world.shape;
        let missing = self.world.program(|node| {
            let agents = (1..shape.hosts).map(|host| shape.at(host * shape.slots()));
            agents.filter(|agent| node.link_to(*agent).is_none()).count()
        });
        self.world.oracle.expect(missing == 0, || format!("{missing} hosts are not connected"));
        let last_link_ns = self.world.last_link_ns;
        if shape.is_uneven {
            self.send_uneven_messages();
        }
        last_link_ns
    }

    /// Sends different numbers of messages to different hosts, so that the frames of a cast have
    /// different sequence numbers in the sessions with these hosts.
    fn send_uneven_messages(&mut self) {
        let shape = self.world.shape;
        let mut program_rng = Rng::new(shape.seed).fork();
        for host in 1..shape.hosts {
            for _ in 0..program_rng.below(UNEVEN_MESSAGES_MAX) {
                let message = CallSpec {
                    kind: Kind::Post,
                    targets: [Target { proc: ProcId::new(host, 0), rank: 0 }].into(),
                    port: PortId::AGENT,
                    meta_len: 0,
                    part_count: 0,
                    tail: Bytes::new(),
                    window: u32::MAX,
                    timeout: None,
                };
                let sent = self.world.program(|node| node.send(&message));
                self.world.oracle.expect(sent.is_ok(), || format!("host {host}: {sent:?}"));
            }
        }
        self.world.run(BOOT_NS + UNEVEN_NS, |_| false);
    }

    fn spawn(&mut self) -> Cast {
        self.wait_idle();
        let window = Bytes::copy_from_slice(&u32::MAX.to_le_bytes());
        self.begin(Kind::Spawn, window.len() as u16, |_| window);
        let targets = Arc::clone(&self.targets);
        // The owner of a mesh does the same.
        self.world.program(|node| targets.iter().for_each(|target| node.watch(target.proc)));
        self.finish_all().pop().unwrap_or_default()
    }

    /// Advances time until the controller is idle. It probes all hosts four times per heartbeat
    /// interval; this function returns between two rounds of probes.
    fn wait_idle(&mut self) {
        let check_ns = u64::from(self.world.shape.heartbeat_s) * 250_000_000;
        if let Some(checks) = self.world.now().checked_div(check_ns) {
            self.world.run((checks + 1) * check_ns + check_ns * 3 / 5, |_| false);
        }
    }

    fn cast_alone(&mut self) -> Cast {
        self.wait_idle();
        self.begin(Kind::Call, 0, task);
        self.finish_all().pop().unwrap_or_default()
    }

    /// Casts while failures occur, until all scheduled failures have occurred.
    fn cast_with_failures(&mut self) -> Vec<Cast> {
        let shape = self.world.shape;
        if shape.deaths == 0 {
            return Vec::new();
        }
        let mut fault_rng = Rng::new(shape.seed).fork();
        let mut casts = Vec::new();
        for burst in 0..BURSTS {
            let begun = self.world.now();
            let span = CAST_GAP_NS * u64::from(CASTS_PER_BURST);
            let (first, end) = (shape.deaths * burst / BURSTS, shape.deaths * (burst + 1) / BURSTS);
            for number in first..end {
                let death = self.draw(number, &mut fault_rng);
                self.world.schedule_death(begun + fault_rng.below(span), death);
            }
            for place in 0..CASTS_PER_BURST {
                self.world.run(begun + CAST_GAP_NS * u64::from(place), |_| false);
                self.begin(Kind::Call, 0, task);
            }
            self.world.run(begun + span, |_| false);
            casts.append(&mut self.finish_all());
            self.world.trim();
        }
        // All scheduled failures have occurred, so this cast gets a fault for each of them.
        casts.push(self.cast_alone());
        casts
    }

    /// Draws a failure. Of ten failures, one is of a host (if hosts can die), three are of
    /// processes, and six are of actors. Nothing is chosen twice.
    fn draw(&mut self, number: u32, fault_rng: &mut Rng) -> Death {
        let shape = self.world.shape;
        loop {
            let rank = fault_rng.below(u64::from(shape.actors)) as u32;
            let host = shape.proc(rank).host.0;
            let (death, ranks) = match number % 10 {
                0 if shape.heartbeat_s > 0 && host != 0 => {
                    let per_host = shape.slots() - 1;
                    (Death::Host(host), host * per_host..(host + 1) * per_host)
                }
                1..=3 => (Death::Proc(rank), rank..rank + 1),
                _ => (Death::Actor(rank), rank..rank + 1),
            };
            let ranks = ranks.start as usize..(ranks.end as usize).min(self.is_dying.len());
            if !self.is_dying[ranks.clone()].iter().any(|was_chosen| *was_chosen) {
                self.is_dying[ranks].fill(true);
                return death;
            }
        }
    }

    /// Sends a message to all actors.
    fn begin(&mut self, kind: Kind, meta_len: u16, tail: impl FnOnce(u64) -> Bytes) {
        let shape = self.world.shape;
        let tag = self.world.oracle.new_tag();
        self.world.reached.resize(tag as usize + 1, 0);
        let begun = self.world.now();
        if kind == Kind::Call {
            let lives = self.targets.iter();
            let lives = lives.map(|target| (target.rank, target.proc, shape.life(target.proc)));
            self.world.oracle.sent_call(tag, 0, lives, Duration::from_nanos(begun));
        }
        let spec = CallSpec {
            kind,
            targets: Arc::clone(&self.targets),
            port: MESH,
            meta_len,
            part_count: 0,
            tail: tail(tag),
            window: u32::MAX,
            timeout: None,
        };
        self.world.take_load();
        match self.world.program(|node| node.call(&spec)) {
            Ok(reply_port) => self.open.push(Open { tag, begun, reply_port, cast: None }),
            Err(why) => self.world.oracle.violated(|| format!("cast {tag} is held back: {why:?}")),
        }
    }

    /// Waits for the replies to all open messages.
    fn finish_all(&mut self) -> Vec<Cast> {
        let until = self.world.now() + WAIT_NS_MAX;
        while self.open.iter().any(|open| open.cast.is_none()) {
            self.world.run(until, |world| !world.ready_ports.is_empty());
            let ready_ports = std::mem::take(&mut self.world.ready_ports);
            if ready_ports.is_empty() {
                break;
            }
            for (at, reply_port) in ready_ports {
                self.check_replies(at, reply_port);
            }
        }
        let open = std::mem::take(&mut self.open);
        for one in open.iter().filter(|one| one.cast.is_none()) {
            self.report_stuck(one);
        }
        let load = self.world.take_load();
        let ended = open.into_iter().filter_map(|open| open.cast);
        ended.map(|cast| Cast { load, ..cast }).collect()
    }

    fn report_stuck(&mut self, open: &Open) {
        let waits: Vec<ProcId> = self.world.program(|node| {
            let waits = node.waits().filter(|(reply_port, _)| *reply_port == open.reply_port);
            waits.map(|(_, receiver)| receiver.proc).collect()
        });
        let shape = self.world.shape;
        let dead = waits.iter().filter(|proc| !self.world.is_alive(shape.life(**proc))).count();
        self.world.oracle.violated(|| {
            let (tag, count, first) = (open.tag, waits.len(), waits.first());
            format!("cast {tag} waits for {count} processes, {dead} of them dead, as {first:?}")
        });
    }

    fn check_replies(&mut self, at: u64, reply_port: PortId) {
        let Some(place) = self.open.iter().position(|open| open.reply_port == reply_port) else {
            return;
        };
        let mut replies = Vec::new();
        self.world.program(|node| {
            if node.is_ready(reply_port) {
                node.take_replies(reply_port, &mut replies);
            }
        });
        if replies.is_empty() {
            return;
        }
        let Open { tag, begun, .. } = self.open[place];
        let reached_ns = self.world.reached[tag as usize].saturating_sub(begun);
        let mut cast = Cast { reached_ns, gathered_ns: at - begun, ..Cast::default() };
        for reply in &replies {
            if reply.code != 0 {
                cast.faults[column(reply.code)] += 1;
            }
            self.check(tag, reply);
        }
        self.world.oracle.call_ended(tag);
        self.open[place].cast = Some(cast);
    }

    fn check(&mut self, tag: u64, reply: &Reply) {
        let (rank, code) = (reply.rank, reply.code);
        let was_chosen = self.is_dying[rank as usize];
        let oracle = &mut self.world.oracle;
        oracle.expect(code == 0 || was_chosen, || {
            format!("cast {tag}: rank {rank} is said to have fault {code}, and is well")
        });
        if tag > 1 {
            let value = unpack(&reply.frame.body()).map(|[word]| word);
            let from = self.targets[rank as usize].proc;
            oracle.replied(tag, rank, from, code, value.filter(|_| code == 0));
        }
    }
}

/// The column in which a fault is counted.
fn column(code: u8) -> usize {
    match code {
        fault::ACTOR_FAILED => 0,
        fault::PROC_DIED => 1,
        fault::HOST_DIED => 2,
        _ => 3,
    }
}
