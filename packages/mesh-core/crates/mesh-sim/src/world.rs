//! A world: processes, the connections between them, and the faults of both.

mod check;

use crate::directory::Directory;
use crate::message::{Life, Task};
use crate::net::{Arrival, Net, Packet, WireId};
use crate::oracle::{Oracle, Tally};
use crate::plan::{Options, Plan};
use crate::process::{Action, Context, Process, Request, Scheduled};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use mesh_runtime::node::{Effect, LinkId};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{HostId, ProcId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

/// The time at which programs start to act. All processes have started by then.
const BOOT: Duration = Duration::from_millis(100);
/// The maximum time until a world is quiescent after its last fault. Senders may queue up behind
/// one message that waits several seconds for the spawn of its receiver.
const REST: Duration = Duration::from_secs(3600);
/// A world is quiescent when only heartbeats and acknowledgements were sent for this long: longer
/// than any wait for a remote event.
const QUIET: Duration = Duration::from_secs(10);
/// The event limit of an empty world, and the amount that each process and each step adds to it.
const EVENTS_MAX: (u64, u64) = (2_000_000, 2000);

/// A scheduled event.
#[derive(Debug)]
enum Event {
    /// A packet arrives at one end of a wire.
    Arrive(WireId, usize),
    /// A process carries out work that is due.
    Scheduled(Life, Scheduled),
    /// A process dials another.
    Dial(Life, ProcId),
    /// A program performs an action.
    Act(Action),
    /// The root spawns one of its initial meshes.
    SpawnFirst,
    /// A randomly chosen process is killed.
    Kill,
    /// A randomly chosen connection breaks.
    Break,
    /// A randomly chosen process stops for a while.
    Stall,
    /// A randomly chosen agent stops for more than three heartbeats.
    StallAgent,
    /// An agent is notified that a process has exited.
    Reap(ProcId, u32),
    /// A dead process is to be restarted.
    StartSlot(ProcId),
    /// A process starts.
    Start(ProcId, u32),
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The options of the run.
    pub options: Options,
    /// The hash of the trace, which is identical for every run with these options.
    pub hash: u64,
    /// The number of events.
    pub events: u64,
    /// The duration of the run in virtual time.
    pub took: Duration,
    /// Statistics for the summary.
    pub tally: Tally,
    /// The violated invariants; empty if the run passed.
    pub violations: Vec<String>,
}

/// The state of a simulation.
pub struct World {
    options: Options,
    plan: Plan,
    now: Duration,
    /// The time of the last event other than a heartbeat, acknowledgement or node timer.
    last_activity_at: Duration,
    events: u64,
    queue: Queue<Event>,
    net: Net,
    /// Wires between hosts whose listener has not accepted yet.
    far: BTreeSet<u32>,
    oracle: Oracle,
    directory: Directory,
    trace: Trace,
    lives: Vec<Option<Process>>,
    stalled: BTreeMap<Life, Duration>,
    /// Randomness of faults and of the network.
    fault_rng: Rng,
    /// Randomness of programs.
    program_rng: Rng,
    requests: Vec<Request>,
    links: Vec<Effect>,
}

/// Runs the world with these options until its program has ended.
pub fn run(options: Options) -> Report {
    let mut world = World::new(options);
    world.boot();
    world.fill();
    world.run_until_quiet("after the last fault");
    world.check();
    world.act(0, Process::end_program);
    world.run_until_quiet("after the end of the program");
    world.check_ended();
    Report {
        options,
        hash: world.trace.hash(),
        events: world.events,
        took: world.now,
        tally: world.oracle.tally,
        violations: world.oracle.violations().to_vec(),
    }
}

impl World {
    fn new(options: Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let plan = Plan::draw(&options, &mut rng);
        let mut trace = Trace::new(options.is_traced);
        trace.words(&[options.seed, u64::from(options.procs), u64::from(options.steps)]);
        trace.line(|line| write!(line, "{plan:?}"));
        Self {
            options,
            now: Duration::ZERO,
            last_activity_at: Duration::ZERO,
            events: 0,
            queue: Queue::new(),
            net: Net::default(),
            far: BTreeSet::new(),
            oracle: Oracle::default(),
            directory: Directory::new(plan.hosts, plan.slots),
            trace,
            lives: Vec::new(),
            stalled: BTreeMap::new(),
            fault_rng: rng.fork(),
            program_rng: rng.fork(),
            requests: Vec::new(),
            links: Vec::new(),
            plan,
        }
    }

    /// Starts every process and registers it with the agent of its host.
    fn boot(&mut self) {
        for host in 0..self.plan.hosts {
            let agent = self.start(ProcId::new(host, 0), 0);
            for slot in 1..self.plan.slots {
                self.act(agent, |agent, _| agent.add_slot(slot));
                let at = Duration::from_micros(self.fault_rng.below(50_000));
                self.queue.add(at, Event::Start(ProcId::new(host, slot), 0));
            }
        }
    }

    /// Schedules all program actions and faults.
    fn fill(&mut self) {
        for _ in 0..self.plan.meshes {
            self.queue.add(BOOT, Event::SpawnFirst);
        }
        for _ in 0..self.options.steps {
            let action = Action::ALL[self.program_rng.weighted(&self.plan.action_weights)];
            let at = self.random_time();
            self.queue.add(at, Event::Act(action));
        }
        let faults: [(u32, fn() -> Event); 4] = [
            (self.plan.kills, || Event::Kill),
            (self.plan.breaks, || Event::Break),
            (self.plan.stalls, || Event::Stall),
            (self.plan.agent_stalls, || Event::StallAgent),
        ];
        for (count, event) in faults {
            for _ in 0..count {
                let at = self.random_time();
                self.queue.add(at, event());
            }
        }
    }

    fn random_time(&mut self) -> Duration {
        BOOT + Duration::from_nanos(self.fault_rng.below(self.plan.active.as_nanos() as u64))
    }

    fn run_until_quiet(&mut self, when: &str) {
        let end = self.now + BOOT + self.plan.active + REST;
        let size = u64::from(self.options.procs) + u64::from(self.options.steps);
        let events_max = EVENTS_MAX.0 + EVENTS_MAX.1 * size;
        self.last_activity_at = self.now;
        while self.queue.next_at().is_some_and(|at| at < self.last_activity_at + QUIET)
            && let Some((at, event)) = self.queue.pop()
        {
            if !self.oracle.violations().is_empty() {
                return;
            }
            if at > end || self.events > events_max {
                let events = self.events;
                self.oracle.violated(|| {
                    format!("no rest {when}: {event:?} at {at:?}, after {events} events")
                });
                return;
            }
            self.now = at;
            self.events += 1;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(until) = self.stalled_until(&event) {
            return self.queue.add(until, event);
        }
        self.trace.at(self.now);
        if !matches!(event, Event::Arrive(..) | Event::Scheduled(_, Scheduled::NodeTick)) {
            self.last_activity_at = self.now;
        }
        match event {
            Event::Arrive(wire, end) => self.arrive(wire, end),
            Event::Scheduled(life, scheduled) => {
                self.trace.words(&[2, u64::from(life)]);
                self.act(life, |process, context| process.run_scheduled(scheduled, context));
            }
            Event::Dial(life, peer) => self.dial(life, peer),
            Event::Act(action) => {
                let place = self.program_rng.below(self.directory.place_count() as u64) as usize;
                let proc = self.directory.proc(place);
                self.trace.words(&[4, action as u64, proc.to_u64()]);
                self.trace.line(|line| write!(line, "{proc} {action:?}"));
                // A stopped process performs no action.
                let life = self.directory.life(proc).filter(|life| !self.is_stalled(*life));
                if let Some(life) = life {
                    self.act(life, |process, context| process.act(action, context));
                }
            }
            Event::SpawnFirst => self.act(0, Process::spawn_first),
            Event::Kill => {
                if let Some(life) = self.random_process() {
                    self.kill(life);
                }
            }
            Event::Break => self.break_random_connection(),
            Event::Stall => {
                if let Some(life) = self.random_process() {
                    let length = Duration::from_micros(self.fault_rng.between(1, 500_000));
                    self.stall(life, length);
                }
            }
            Event::StallAgent => {
                let host = self.fault_rng.below(u64::from(self.plan.hosts)) as u32;
                let length = Duration::from_micros(self.fault_rng.between(3_200_000, 4_500_000));
                let until = self.stall(self.agent_of(ProcId::new(host, 0)), length);
                self.oracle.agent_stalled(HostId(host), self.now, until);
            }
            Event::Reap(proc, incarnation) => {
                let agent = self.agent_of(proc);
                self.trace.line(|line| write!(line, "{proc}/{incarnation} is reaped"));
                self.act(agent, |agent, _| agent.reap(proc, incarnation));
            }
            Event::StartSlot(proc) => {
                let agent = self.agent_of(proc);
                self.act(agent, |agent, context| agent.start_slot(proc.slot, context));
            }
            Event::Start(proc, incarnation) => {
                self.start(proc, incarnation);
            }
        }
    }

    /// Stops a process for a while. Returns the time at which it resumes.
    fn stall(&mut self, life: Life, length: Duration) -> Duration {
        let until = self.stalled.entry(life).or_default();
        // A process that is already stopped resumes at the end of the longer stall.
        *until = (self.now + length).max(*until);
        let until = *until;
        self.trace.line(|line| write!(line, "life {life} stalls until {until:?}"));
        until
    }

    /// The time at which the process that handles an event resumes, if it is stopped.
    fn stalled_until(&self, event: &Event) -> Option<Duration> {
        let life = match event {
            Event::Arrive(wire, end) => self.net.life_at(*wire, *end)?,
            Event::Scheduled(life, _) | Event::Dial(life, _) => *life,
            // Only a running agent reaps and starts processes.
            Event::Reap(proc, _) | Event::StartSlot(proc) => self.agent_of(*proc),
            _ => return None,
        };
        self.stalled.get(&life).copied().filter(|until| *until > self.now)
    }

    fn is_stalled(&self, life: Life) -> bool {
        self.stalled.get(&life).is_some_and(|until| *until > self.now)
    }

    /// Lets a process act, and carries out the resulting effects.
    fn act(&mut self, life: Life, act: impl FnOnce(&mut Process, &mut Context<'_>)) {
        if self.step(life, act).is_some() {
            self.execute(life);
        }
    }

    /// Lets a process act. Its effects are stored in `links` and `requests`.
    fn step<T>(
        &mut self,
        life: Life,
        act: impl FnOnce(&mut Process, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let mut process = self.lives.get_mut(life as usize)?.take()?;
        let mut context = Context {
            now: self.now,
            rng: &mut self.program_rng,
            plan: &self.plan,
            oracle: &mut self.oracle,
            directory: &mut self.directory,
            requests: &mut self.requests,
        };
        let result = act(&mut process, &mut context);
        process.settle(&mut self.links, &mut context);
        self.lives[life as usize] = Some(process);
        Some(result)
    }

    fn execute(&mut self, life: Life) {
        let links = std::mem::take(&mut self.links);
        for effect in links {
            match effect {
                Effect::Transmit { link, frame } => self.transmit(life, link, frame),
                Effect::Connect { peer, after } => {
                    let delay = Duration::from_micros(self.fault_rng.between(1, 50));
                    self.queue.add(self.now + after + delay, Event::Dial(life, peer));
                }
                Effect::Close { link } => {
                    let arrival = self.net.close((life, link), self.now);
                    self.schedule(arrival);
                }
                _ => unreachable!("the process keeps the others"),
            }
        }
        let requests = std::mem::take(&mut self.requests);
        for request in requests {
            match request {
                Request::Schedule(after, scheduled) => {
                    self.queue.add(self.now + after, Event::Scheduled(life, scheduled));
                }
                Request::Start { slot, incarnation } => {
                    let proc = self.lives[life as usize].as_ref().map(Process::id);
                    let proc = ProcId { slot, ..proc.expect("who asks is alive") };
                    let after = Duration::from_micros(self.fault_rng.between(500, 20_000));
                    self.queue.add(self.now + after, Event::Start(proc, incarnation));
                }
                Request::Exit => return self.kill(life),
            }
        }
    }

    fn transmit(&mut self, life: Life, link: LinkId, frame: Frame) {
        let bytes = frame.head.encode(frame.tail.len());
        let is_same = Head::decode(&bytes) == Ok((frame.head, frame.tail.len()));
        self.oracle.expect(is_same, || format!("{:?} is another one on the wire", frame.head));
        let jitter = Duration::from_nanos(self.fault_rng.below(self.plan.jitter_us * 1000 + 1));
        let arrival = self.net.send((life, link), frame, jitter, self.now);
        self.schedule(arrival);
    }

    fn schedule(&mut self, arrivals: impl IntoIterator<Item = Arrival>) {
        for Arrival { at, wire, end } in arrivals {
            self.queue.add(at, Event::Arrive(wire, end));
        }
    }

    fn arrive(&mut self, wire: WireId, end: usize) {
        let Some((life, link, packet)) = self.net.take(wire, end) else { return };
        self.trace.words(&[1, u64::from(wire.0), end as u64]);
        if !is_heartbeat(&packet) {
            self.last_activity_at = self.now;
        }
        match (packet, link) {
            (Packet::Open, _) => {
                let is_far = self.far.remove(&wire.0);
                let link = self.step(life, |process, _| {
                    let node = process.node();
                    if is_far { node.accepted_remote() } else { node.accepted() }
                });
                let Some(link) = link else { return };
                self.net.accepted(wire, link);
                self.execute(life);
            }
            (Packet::Frame(frame), Some(link)) => {
                let Head { kind, seq, from, to, rank, flags, .. } = frame.head;
                self.trace.words(&[kind as u64, seq, u64::from(rank), u64::from(flags)]);
                self.trace.words(&[from.proc.to_u64(), from.port.0, to.proc.to_u64(), to.port.0]);
                self.trace.bytes(&frame.tail);
                self.trace.line(|line| {
                    write!(line, "wire {} to life {life}: {kind:?} #{seq} ", wire.0)?;
                    write!(line, "{from} -> {to} rank {rank} flags {flags}")?;
                    match Task::decode(&frame.tail) {
                        Some(task) => write!(line, " tag {} {:?}", task.tag, task.work),
                        None => Ok(()),
                    }
                });
                self.act(life, |process, _| {
                    process.node().note_activity(link);
                    process.node().receive(link, frame);
                });
            }
            (Packet::Close, Some(link)) => {
                self.trace.line(|line| write!(line, "wire {} is down for life {life}", wire.0));
                self.act(life, |process, _| process.node().link_down(link));
            }
            (Packet::Frame(_) | Packet::Close, None) => {}
        }
    }

    fn dial(&mut self, life: Life, peer: ProcId) {
        let Some(Some(process)) = self.lives.get(life as usize) else { return };
        let me = process.id();
        let is_neighbour = me.host == peer.host || (me.slot == 0 && peer.slot == 0);
        self.oracle.expect(is_neighbour, || format!("{me} dials {peer}, which is no neighbour"));
        // A process that its own agent refuses is orphaned and exits, which these worlds do not
        // simulate.
        let may_refuse = peer.slot != 0 || me.host != peer.host;
        let is_refused = may_refuse && self.fault_rng.chance(self.plan.refused_permille);
        let listener = self.directory.life(peer).filter(|_| !is_refused);
        self.trace.words(&[3, u64::from(life), peer.to_u64(), u64::from(listener.is_some())]);
        self.trace.line(|line| write!(line, "{me} dials {peer}: {listener:?}"));
        let Some(listener) = listener else {
            return self.act(life, |process, _| process.node().connect_failed(peer));
        };
        let Some(link) = self.step(life, |process, _| process.node().connected(peer)) else {
            return;
        };
        let slowness = if me.host == peer.host { 10 } else { 1 };
        let latency = self.fault_rng.between(self.plan.latency_us / 2, self.plan.latency_us * 2);
        let latency = Duration::from_nanos(latency * 1000 / slowness);
        let arrival = self.net.open((life, link), listener, latency, self.now);
        if me.host != peer.host {
            self.far.insert(arrival.wire.0);
        }
        self.schedule([arrival]);
        self.execute(life);
    }

    fn start(&mut self, proc: ProcId, incarnation: u32) -> Life {
        let life = self.lives.len() as Life;
        self.trace.words(&[5, u64::from(life), proc.to_u64()]);
        self.trace.line(|line| write!(line, "{proc}/{incarnation} starts as life {life}"));
        self.lives.push(Some(Process::new(life, proc, incarnation, &self.plan)));
        self.directory.set_life(proc, Some(life));
        self.oracle.started(life, proc, incarnation);
        self.act(life, |_, _| ());
        life
    }

    fn kill(&mut self, life: Life) {
        let Some(process) = self.lives[life as usize].take() else { return };
        let (proc, incarnation) = (process.id(), process.incarnation());
        self.trace.words(&[6, u64::from(life)]);
        self.trace.line(|line| write!(line, "{proc}/{incarnation}, life {life}, is killed"));
        self.directory.set_life(proc, None);
        self.oracle.died(life, proc, self.now);
        self.stalled.remove(&life);
        let arrivals = self.net.kill(life, &mut self.fault_rng, self.now);
        self.schedule(arrivals);
        let after = Duration::from_micros(self.fault_rng.between(20, 3000));
        self.queue.add(self.now + after, Event::Reap(proc, incarnation));
        if self.fault_rng.chance(self.plan.restart_permille) {
            let after = after + Duration::from_micros(self.fault_rng.below(self.plan.restart_us));
            self.queue.add(self.now + after, Event::StartSlot(proc));
        }
    }

    fn break_random_connection(&mut self) {
        let place = self.fault_rng.below(self.directory.place_count() as u64) as usize;
        let Some(life) = self.directory.life(self.directory.proc(place)) else { return };
        let Some(wire) = self.fault_rng.pick(self.net.wires_of(life)).copied() else { return };
        self.trace.words(&[7, u64::from(wire.0)]);
        self.trace.line(|line| write!(line, "wire {} of life {life} breaks", wire.0));
        let arrivals = self.net.cut(wire, &mut self.fault_rng, self.now);
        self.schedule(arrivals);
    }

    /// Picks a live process that is not an agent.
    fn random_process(&mut self) -> Option<Life> {
        let place = match self.plan.hot_places {
            0 => self.fault_rng.below(self.directory.place_count() as u64),
            // The candidates are spread over the hosts and never include an agent.
            hot => 1 + self.fault_rng.below(u64::from(hot)) * u64::from(self.plan.slots + 1),
        };
        let place = place as usize % self.directory.place_count();
        let proc = self.directory.proc(place);
        self.directory.life(proc).filter(|_| proc.slot != 0)
    }

    fn agent_of(&self, proc: ProcId) -> Life {
        let agent = ProcId { slot: 0, ..proc };
        self.directory.life(agent).expect("agents live as long as the world")
    }
}

fn is_heartbeat(packet: &Packet) -> bool {
    matches!(packet, Packet::Frame(frame) if matches!(frame.head.kind, Kind::Ping | Kind::Ack))
}
