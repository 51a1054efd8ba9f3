//! A cluster whose programs run outside of the simulator, which has their nodes, network and clock.
//!
//! The threads of the programs are real, but only one of them runs at a time. The driver calls
//! [`Cluster::advance`], runs the thread that it names until that thread waits again, and repeats.
//! While a thread runs, virtual time stands still; it advances to the next event in between. The
//! delay until a woken thread runs, the latencies of connections and the jitter of each frame are
//! drawn from the seed, so a seed determines the order in which everything happens.

use crate::message::Life;
use crate::net::{Arrival, Net, Packet, WireId};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use mesh_runtime::engine::ready::ReadyQueue;
use mesh_runtime::hash::FastMap;
use mesh_runtime::node::{Effect, LinkId, Node, NodeConfig};
use mesh_wire::frame::{Frame, Head};
use mesh_wire::id::{HostId, PortId, ProcId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Weak;
use std::time::Duration;

/// How far a read of the clock advances it, so that a loop that waits for a time ends.
const CLOCK_READ: Duration = Duration::from_nanos(200);

/// The interval at which events of a stopped process are tried again.
const STALL_CHECK: Duration = Duration::from_millis(10);

/// The number of a thread of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ThreadId(pub u32);

/// What the driver has to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Run this thread until it waits.
    Thread(ThreadId),
    /// Handle a timer that the driver has set.
    Timer(u64),
    /// Check the descriptors that threads wait for: a [`ReadyQueue`] has changed.
    Descriptors,
    /// Nothing will ever happen again.
    Idle,
}

/// What a thread waits for.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// Wake the running thread, once.
    Thread,
    /// Tell an event loop, as long as it exists.
    Loop(Weak<ReadyQueue>),
}

#[derive(Debug)]
enum Event {
    Arrive(WireId, usize),
    Dial(Life, ProcId),
    NodeTick(Life),
    /// A thread runs again, if it still waits with this generation.
    Wake(ThreadId, u32),
    Timer(u64),
}

/// The latencies of a cluster.
#[derive(Clone, Copy, Debug)]
struct Timing {
    /// The typical latency between hosts in microseconds; within a host it is a tenth.
    latency_us: u64,
    /// The maximum jitter of a frame in microseconds.
    jitter_us: u64,
    /// The maximum delay in microseconds until a woken thread runs.
    wake_us: u64,
    /// How many of 1,000 frames and wake-ups are delayed for much longer.
    hiccup_permille: u64,
    /// The maximum duration of such a delay in microseconds.
    hiccup_us: u64,
}

impl Timing {
    fn draw(rng: &mut Rng) -> Self {
        Self {
            latency_us: rng.between(10, 1000),
            jitter_us: if rng.chance(300) { 0 } else { rng.between(1, 3000) },
            wake_us: rng.between(1, 200),
            hiccup_permille: if rng.chance(500) { 0 } else { rng.between(1, 20) },
            hiccup_us: rng.between(1000, 100_000),
        }
    }
}

/// A process.
#[derive(Debug)]
struct Member {
    node: Node,
    id: ProcId,
    is_alive: bool,
    waiters: FastMap<PortId, Vec<Waiting>>,
    credit_waiters: Vec<ThreadId>,
    /// The earliest scheduled tick of the node.
    tick: Option<Duration>,
}

#[derive(Clone, Debug)]
enum Waiting {
    Thread(ThreadId),
    Loop(Weak<ReadyQueue>),
}

#[derive(Debug)]
struct Thread {
    life: Life,
    /// Incremented by each wait, so that the wake-ups of earlier waits are recognised.
    generation: u32,
    is_blocked: bool,
    /// It was woken while it ran, so its next wait returns immediately.
    is_notified: bool,
}

/// The state of a simulated cluster.
#[derive(Debug)]
pub struct Cluster {
    now: Duration,
    queue: Queue<Event>,
    net: Net,
    /// Wires between hosts whose listener has not accepted yet.
    far: BTreeSet<u32>,
    members: Vec<Member>,
    by_proc: BTreeMap<ProcId, Life>,
    threads: Vec<Thread>,
    current: Option<ThreadId>,
    /// Processes that are stopped until a time.
    stalled: BTreeMap<Life, Duration>,
    /// How many times slower than others a host is.
    slowness: FastMap<HostId, u32>,
    /// The hosts on one side of a partition, and when it ends.
    partition: (BTreeSet<HostId>, Duration),
    has_changed_queues: bool,
    timing: Timing,
    rng: Rng,
    trace: Trace,
}

impl Cluster {
    /// Creates a cluster without processes. Everything that happens in it derives from the seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self {
            now: Duration::ZERO,
            queue: Queue::new(),
            net: Net::default(),
            far: BTreeSet::new(),
            members: Vec::new(),
            by_proc: BTreeMap::new(),
            threads: Vec::new(),
            current: None,
            stalled: BTreeMap::new(),
            slowness: FastMap::default(),
            partition: (BTreeSet::new(), Duration::ZERO),
            has_changed_queues: false,
            timing: Timing::draw(&mut rng),
            rng: rng.fork(),
            trace: Trace::new(false),
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Reads the clock for a program.
    pub fn read_clock(&mut self) -> Duration {
        self.now += CLOCK_READ;
        self.now
    }

    /// The hash of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Draws a number below `bound`, which must not be 0.
    pub fn random_below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Starts a process.
    pub fn add_process(&mut self, config: NodeConfig) -> Life {
        let (id, life) = (config.me, self.members.len() as Life);
        self.trace.words(&[5, u64::from(life), id.to_u64()]);
        self.members.push(Member {
            node: Node::new(config),
            id,
            is_alive: true,
            waiters: FastMap::default(),
            credit_waiters: Vec::new(),
            tick: None,
        });
        self.by_proc.insert(id, life);
        life
    }

    /// Ends a process. What it sent last may be lost if it was killed.
    pub fn end_process(&mut self, life: Life, is_killed: bool) {
        let member = &mut self.members[life as usize];
        if !std::mem::replace(&mut member.is_alive, false) {
            return;
        }
        let id = member.id;
        self.stalled.remove(&life);
        self.trace.at(self.now);
        self.trace.words(&[6, u64::from(life), u64::from(is_killed)]);
        if self.by_proc.get(&id) == Some(&life) {
            self.by_proc.remove(&id);
        }
        let arrivals = if is_killed {
            self.net.kill(life, &mut self.rng, self.now)
        } else {
            self.net.leave(life, self.now)
        };
        self.schedule(arrivals);
    }

    /// Adds a thread of a process, which waits for [`Cluster::wake`].
    pub fn add_thread(&mut self, life: Life) -> ThreadId {
        let thread = Thread { life, generation: 0, is_blocked: true, is_notified: false };
        self.threads.push(thread);
        ThreadId(self.threads.len() as u32 - 1)
    }

    /// Prepares the wait of the running thread.
    ///
    /// Returns `false` if it must not wait, because it was woken while it ran.
    pub fn begin_wait(&mut self, until: Option<Duration>) -> bool {
        let Some(id) = self.current else { return false };
        let thread = &mut self.threads[id.0 as usize];
        if std::mem::take(&mut thread.is_notified) {
            return false;
        }
        thread.is_blocked = true;
        thread.generation += 1;
        if let Some(until) = until {
            let event = Event::Wake(id, thread.generation);
            self.queue.add(until.max(self.now), event);
        }
        true
    }

    /// Makes a thread run soon, or makes its next wait return.
    pub fn wake(&mut self, id: ThreadId) {
        let thread = &mut self.threads[id.0 as usize];
        if !thread.is_blocked {
            thread.is_notified = true;
            return;
        }
        let event = Event::Wake(id, thread.generation);
        let host = self.members[thread.life as usize].id.host;
        let delay = Duration::from_nanos(self.rng.below(self.timing.wake_us * 1000) + 1);
        let delay = (delay + self.hiccup()) * self.slowness_of(host);
        self.queue.add(self.now + delay, event);
    }

    /// Makes a thread the running one, although it may wait; the driver resumes it directly.
    pub fn resume(&mut self, id: ThreadId) {
        let thread = &mut self.threads[id.0 as usize];
        thread.is_blocked = false;
        thread.is_notified = false;
        thread.generation += 1;
        self.current = Some(id);
    }

    /// The thread that runs.
    pub fn current(&self) -> Option<ThreadId> {
        self.current
    }

    /// Reports `token` by [`Next::Timer`] at a time.
    pub fn set_timer(&mut self, at: Duration, token: u64) {
        self.queue.add(at.max(self.now), Event::Timer(token));
    }

    /// Stops a process for a while.
    pub fn stall(&mut self, life: Life, length: Duration) {
        let until = self.stalled.entry(life).or_default();
        *until = (self.now + length).max(*until);
    }

    /// Lets a stopped process continue.
    pub fn end_stall(&mut self, life: Life) {
        self.stalled.remove(&life);
    }

    /// Makes a host slower than others by a factor.
    pub fn slow_down(&mut self, host: HostId, factor: u32) {
        self.slowness.insert(host, factor.max(1));
    }

    /// Separates some hosts from all others for a while. Frames between them arrive afterwards.
    pub fn separate(&mut self, hosts: BTreeSet<HostId>, length: Duration) {
        self.partition = (hosts, self.now + length);
    }

    /// Ends all stalls, slowness and partitions.
    pub fn clear_faults(&mut self) {
        self.stalled.clear();
        self.slowness.clear();
        self.partition.1 = self.now;
    }

    /// Breaks a random connection of a process. Frames in transit may be lost.
    pub fn break_connection(&mut self, life: Life) {
        let Some(wire) = self.rng.pick(self.net.wires_of(life)).copied() else { return };
        self.trace.words(&[7, u64::from(wire.0)]);
        let arrivals = self.net.cut(wire, &mut self.rng, self.now);
        self.schedule(arrivals);
    }

    /// Advances to the next event that the driver has to handle.
    pub fn advance(&mut self) -> Next {
        self.current = None;
        loop {
            if std::mem::take(&mut self.has_changed_queues) {
                return Next::Descriptors;
            }
            let Some((at, event)) = self.queue.pop() else { return Next::Idle };
            self.now = self.now.max(at);
            if let Some(until) = self.postponed_until(&event) {
                self.queue.add(until, event);
                continue;
            }
            match event {
                Event::Arrive(wire, end) => {
                    self.arrive(wire, end);
                }
                Event::Dial(life, peer) => self.dial(life, peer),
                Event::NodeTick(life) => {
                    self.members[life as usize].tick = None;
                    self.with_node(life, |_| ());
                }
                Event::Wake(id, generation) => {
                    let thread = &mut self.threads[id.0 as usize];
                    if !thread.is_blocked || thread.generation != generation {
                        continue;
                    }
                    thread.is_blocked = false;
                    self.trace.at(self.now);
                    self.trace.words(&[2, u64::from(id.0)]);
                    self.current = Some(id);
                    return Next::Thread(id);
                }
                Event::Timer(token) => return Next::Timer(token),
            }
        }
    }

    /// Runs a step of the node of a process and carries out its effects.
    pub fn with_node<T>(&mut self, life: Life, step: impl FnOnce(&mut Node) -> T) -> T {
        let node = &mut self.members[life as usize].node;
        node.advance(self.now);
        let result = step(node);
        self.settle(life);
        result
    }

    /// Registers what to wake when something arrives at a port, or now if something has.
    pub fn set_waiter(&mut self, life: Life, port: PortId, waiter: Waiter) {
        let member = &mut self.members[life as usize];
        let waiters = member.waiters.entry(port).or_default();
        match (waiter, self.current) {
            (Waiter::Thread, Some(current)) => {
                let is_same = |one: &Waiting| matches!(one, Waiting::Thread(id) if *id == current);
                if !waiters.iter().any(is_same) {
                    waiters.push(Waiting::Thread(current));
                }
            }
            (Waiter::Thread, None) => {}
            (Waiter::Loop(queue), _) => {
                let is_other = |one: &Waiting| match one {
                    Waiting::Loop(other) => {
                        other.strong_count() > 0 && !Weak::ptr_eq(other, &queue)
                    }
                    Waiting::Thread(_) => true,
                };
                waiters.retain(is_other);
                waiters.push(Waiting::Loop(queue));
            }
        }
        if member.node.is_ready(port) {
            self.wake_waiters(life, port);
        }
    }

    /// Removes the waiters of a port.
    pub fn clear_waiters(&mut self, life: Life, port: PortId) {
        self.members[life as usize].waiters.remove(&port);
    }

    /// Wakes the running thread when a receiver of its process may have room again.
    pub fn wait_for_credit(&mut self, life: Life) {
        if let Some(current) = self.current {
            self.members[life as usize].credit_waiters.push(current);
        }
    }

    /// Delivers everything that a process has sent to another one, which is about to report its
    /// death.
    pub fn deliver_all(&mut self, from: ProcId, to: Life) {
        let wires = self.net.wires_of(to).to_vec();
        for wire in wires {
            for end in 0..2 {
                let is_from = self
                    .net
                    .life_at(wire, 1 - end)
                    .is_some_and(|life| self.members[life as usize].id == from);
                while is_from && self.net.life_at(wire, end) == Some(to) && self.arrive(wire, end) {
                }
            }
        }
    }

    /// Tells a host that it was declared dead; returns whether it can be reached.
    pub fn fence(&mut self, life: Life, host: HostId, epoch: u32) -> bool {
        let here = self.members[life as usize].id.host;
        let agent = self.by_proc.get(&host.agent()).copied();
        let Some(agent) = agent.filter(|_| self.is_connected(here, host)) else { return false };
        let frame = self.with_node(life, |node| node.fence(host, epoch));
        self.with_node(agent, |node| {
            let link = node.accepted_remote();
            node.receive(link, frame);
        });
        true
    }

    fn settle(&mut self, life: Life) {
        loop {
            let member = &mut self.members[life as usize];
            let effects: Vec<Effect> = member.node.effects().collect();
            if effects.is_empty() {
                break;
            }
            if !member.is_alive {
                continue;
            }
            for effect in effects {
                self.execute(life, effect);
            }
        }
        let member = &mut self.members[life as usize];
        if !member.is_alive {
            return;
        }
        if member.node.is_untimed() {
            member.node.advance(self.now);
            return self.settle(life);
        }
        if let Some(at) = member.node.next_deadline()
            && member.tick.is_none_or(|tick| at < tick)
        {
            member.tick = Some(at);
            self.queue.add(at.max(self.now), Event::NodeTick(life));
        }
    }

    fn execute(&mut self, life: Life, effect: Effect) {
        match effect {
            Effect::Transmit { link, frame } => self.transmit(life, link, frame),
            Effect::Connect { peer, after } => {
                let delay = Duration::from_micros(self.rng.between(1, 50));
                self.queue.add(self.now + after + delay, Event::Dial(life, peer));
            }
            Effect::Close { link } => {
                let arrival = self.net.close((life, link), self.now);
                self.schedule(arrival);
            }
            Effect::Ready(port) => self.wake_waiters(life, port),
            Effect::Credited => {
                let waiting = std::mem::take(&mut self.members[life as usize].credit_waiters);
                waiting.into_iter().for_each(|thread| self.wake(thread));
            }
            Effect::Probe(host) => {
                let here = self.members[life as usize].id.host;
                let is_up =
                    self.is_connected(here, host) && self.by_proc.contains_key(&host.agent());
                let node = &mut self.members[life as usize].node;
                node.probed(host, is_up.then_some(Duration::ZERO));
            }
            // Large buffers travel inside of the messages, so there are no segments.
            Effect::Released { .. }
            | Effect::Acquired { .. }
            | Effect::WriteDirect { .. }
            | Effect::Abort(_)
            | Effect::PeerDied(_) => {}
        }
    }

    fn wake_waiters(&mut self, life: Life, port: PortId) {
        let Some(waiters) = self.members[life as usize].waiters.get_mut(&port) else { return };
        let mut threads = Vec::new();
        waiters.retain(|waiter| match waiter {
            Waiting::Thread(thread) => {
                threads.push(*thread);
                false
            }
            Waiting::Loop(queue) => queue.upgrade().is_some_and(|queue| {
                queue.push(port);
                self.has_changed_queues = true;
                true
            }),
        });
        threads.into_iter().for_each(|thread| self.wake(thread));
    }

    fn transmit(&mut self, life: Life, link: LinkId, frame: Frame) {
        let host = self.members[life as usize].id.host;
        let jitter = Duration::from_nanos(self.rng.below(self.timing.jitter_us * 1000 + 1));
        let delay = (jitter + self.hiccup()) * self.slowness_of(host);
        let arrival = self.net.send((life, link), frame, delay, self.now);
        self.schedule(arrival);
    }

    fn schedule(&mut self, arrivals: impl IntoIterator<Item = Arrival>) {
        for Arrival { at, wire, end } in arrivals {
            self.queue.add(at, Event::Arrive(wire, end));
        }
    }

    /// Delivers the next packet of a wire; returns whether there was one.
    fn arrive(&mut self, wire: WireId, end: usize) -> bool {
        let Some((life, link, packet)) = self.net.take(wire, end) else { return false };
        self.trace.at(self.now);
        self.trace.words(&[1, u64::from(wire.0), end as u64]);
        match (packet, link) {
            (Packet::Open, _) => {
                let is_far = self.far.remove(&wire.0);
                let node = &mut self.members[life as usize].node;
                let link = if is_far { node.accepted_remote() } else { node.accepted() };
                self.net.accepted(wire, link);
                self.settle(life);
            }
            (Packet::Frame(frame), Some(link)) => {
                let Head { kind, seq, from, to, rank, flags, .. } = frame.head;
                self.trace.words(&[kind as u64, seq, u64::from(rank), u64::from(flags)]);
                let (from, to) = ((from.proc.to_u64(), from.port.0), (to.proc.to_u64(), to.port.0));
                self.trace.words(&[from.0, from.1, to.0, to.1, frame.tail.len() as u64]);
                self.with_node(life, |node| {
                    node.note_activity(link);
                    node.receive(link, frame);
                });
            }
            (Packet::Close, Some(link)) => self.with_node(life, |node| node.link_down(link)),
            (Packet::Frame(_) | Packet::Close, None) => {}
        }
        true
    }

    fn dial(&mut self, life: Life, peer: ProcId) {
        let member = &self.members[life as usize];
        if !member.is_alive {
            return;
        }
        let me = member.id;
        let listener =
            self.by_proc.get(&peer).copied().filter(|_| self.is_connected(me.host, peer.host));
        self.trace.words(&[3, u64::from(life), peer.to_u64(), u64::from(listener.is_some())]);
        let Some(listener) = listener else {
            return self.with_node(life, |node| node.connect_failed(peer));
        };
        let link = self.members[life as usize].node.connected(peer);
        let nearness = if me.host == peer.host { 10 } else { 1 };
        let typical = self.timing.latency_us;
        let latency = self.rng.between(typical / 2, typical * 2) * 1000 / nearness;
        let latency = Duration::from_nanos(latency);
        let arrival = self.net.open((life, link), listener, latency, self.now);
        if me.host != peer.host {
            self.far.insert(arrival.wire.0);
        }
        self.schedule([arrival]);
        self.settle(life);
    }

    /// When an event happens that cannot happen now, because a process is stopped or a network is
    /// partitioned.
    fn postponed_until(&self, event: &Event) -> Option<Duration> {
        let life = match event {
            Event::Arrive(wire, end) => {
                let life = self.net.life_at(*wire, *end)?;
                let other = self.net.life_at(*wire, 1 - *end)?;
                let host_of = |life: Life| self.members[life as usize].id.host;
                if !self.is_connected(host_of(life), host_of(other)) {
                    return Some(self.partition.1);
                }
                life
            }
            Event::Wake(id, _) => self.threads[id.0 as usize].life,
            Event::NodeTick(life) | Event::Dial(life, _) => *life,
            Event::Timer(_) => return None,
        };
        let until = self.stalled.get(&life).copied().filter(|until| *until > self.now)?;
        // A stopped process may continue earlier.
        Some(until.min(self.now + STALL_CHECK))
    }

    fn is_connected(&self, one: HostId, other: HostId) -> bool {
        let (hosts, until) = &self.partition;
        *until <= self.now || hosts.contains(&one) == hosts.contains(&other)
    }

    fn slowness_of(&self, host: HostId) -> u32 {
        self.slowness.get(&host).copied().unwrap_or(1)
    }

    fn hiccup(&mut self) -> Duration {
        if !self.rng.chance(self.timing.hiccup_permille) {
            return Duration::ZERO;
        }
        Duration::from_micros(self.rng.below(self.timing.hiccup_us) + 1)
    }
}
