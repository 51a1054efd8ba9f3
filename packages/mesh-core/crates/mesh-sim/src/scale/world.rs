//! A large world: its clock, its processes, and their events.

use super::fabric::{Fabric, Load, WireId};
use super::process::{Context, InboxItem, Request, SimProcess};
use super::shape::Shape;
use crate::message::{Life, pack};
use crate::oracle::Oracle;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use bytes::Bytes;
use mesh_runtime::node::{CallSpec, HostWatch, LinkId, Node, Target};
use mesh_wire::frame::{Frame, HEAD_LEN, Kind};
use mesh_wire::id::{HostId, PortId, ProcId};
use std::collections::BTreeSet;
use std::time::Duration;

/// The process of the controller.
const ROOT: Life = 0;
/// How long a host continues without a heartbeat of the controller.
const LEASE: Duration = Duration::from_secs(10);
/// How long a connection attempt to a host without power takes to time out.
const CONNECT_TIMEOUT_NS: u64 = 3_000_000_000;
/// The maximum delay between the death of a process and the notification of its agent.
const REAP_NS_MAX: u64 = 500_000;

/// A scheduled event.
#[derive(Debug)]
enum Event {
    /// The first bit of a packet arrives at an end of a wire.
    Arrive(WireId, usize, Packet),
    /// The packet has arrived completely.
    Received(WireId, usize, Packet),
    /// A process is free to handle its inbox.
    Wake(Life),
    /// A process starts to connect to another.
    Dial(Life, ProcId),
    /// The peer has accepted, or the connection attempt has failed.
    Dialled(Life, ProcId),
    /// A timer of a process is due.
    Tick(Life),
    /// An agent is notified of the death of a process.
    Reap(ProcId),
    /// The controller notifies the agents of the other hosts that these hosts are dead.
    NotifyHosts(Vec<HostId>),
    /// An actor, process or host dies.
    Die(Death),
}

#[derive(Debug)]
enum Packet {
    Open,
    Frame(Frame),
    Close,
}

/// A failure that can be injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Death {
    /// The actor of a rank fails.
    Actor(u32),
    /// The process of a rank is killed.
    Proc(u32),
    /// A host loses power.
    Host(u32),
}

/// The state of a simulation.
#[derive(Debug)]
pub struct World {
    /// The size and the parameters of the world.
    pub shape: Shape,
    /// The oracle, which checks the invariants.
    pub oracle: Oracle,
    /// The trace of all events.
    pub trace: Trace,
    /// Number of events.
    pub events: u64,
    /// The time at which each message reached its last actor, by tag.
    pub reached: Vec<u64>,
    /// Reply ports that the program should check, each with the earliest time for it.
    pub ready_ports: Vec<(u64, PortId)>,
    /// The failures that have occurred.
    pub died: Vec<Death>,
    /// The time at which a process last connected to another.
    pub last_link_ns: u64,
    now: u64,
    queue: Queue<Event>,
    fabric: Fabric,
    processes: Vec<Option<Box<SimProcess>>>,
    powerless_hosts: BTreeSet<u32>,
    fault_rng: Rng,
    requests: Vec<Request>,
}

impl World {
    /// Creates a world in which every process has just started.
    pub fn new(shape: Shape) -> Self {
        let mut trace = Trace::new(false);
        trace.words(&[shape.seed, u64::from(shape.actors), u64::from(shape.hosts)]);
        let mut world = Self {
            shape,
            oracle: Oracle::default(),
            trace,
            events: 0,
            reached: Vec::new(),
            ready_ports: Vec::new(),
            died: Vec::new(),
            last_link_ns: 0,
            now: 0,
            queue: Queue::new(),
            fabric: Fabric::new(shape.links, shape.hosts),
            processes: Vec::new(),
            powerless_hosts: BTreeSet::new(),
            fault_rng: Rng::new(shape.seed),
            requests: Vec::new(),
        };
        for life in 0..shape.lives() {
            let proc = shape.at(life);
            world.oracle.started(life, proc, 0);
            let process = shape.has(proc).then(|| Box::new(SimProcess::new(&world.shape, proc)));
            world.processes.push(process);
        }
        world.serve(ROOT, 0, |root, _| root.node.set_fanout(shape.fanout));
        world
    }

    /// The current virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Whether a process exists and is alive.
    pub fn is_alive(&self, life: Life) -> bool {
        self.processes.get(life as usize).is_some_and(Option::is_some)
    }

    /// Connects processes to the agents of their hosts, and the controller to those agents.
    pub fn boot(&mut self) {
        let shape = self.shape;
        let heartbeat = Duration::from_secs(u64::from(shape.heartbeat_s));
        for life in 0..shape.lives() {
            let proc = shape.at(life);
            let agent = ProcId { slot: 0, ..proc };
            self.serve(life, 0, |process, _| {
                if proc.slot != 0 {
                    process.node.dial(agent);
                } else if life != ROOT && !heartbeat.is_zero() {
                    let watch = HostWatch::strict(LEASE / 3, Bytes::new());
                    process.node.monitor_host(HostId(0), watch);
                }
            });
            if proc.slot != 0 && shape.has(proc) {
                self.serve(shape.life(agent), 0, |process, _| process.node.proc_started(proc, 0));
            }
        }
        self.serve(ROOT, 0, |root, _| {
            for host in 1..shape.hosts {
                root.node.dial(ProcId::new(host, 0));
                if !heartbeat.is_zero() {
                    let watch = HostWatch::strict(heartbeat, Bytes::new());
                    root.node.monitor_host(HostId(host), watch);
                }
            }
        });
    }

    /// Lets the controller's program use its node.
    pub fn program<T>(&mut self, act: impl FnOnce(&mut Node) -> T) -> T {
        let done = self.serve(ROOT, 0, |root, _| act(&mut root.node));
        done.expect("the controller lives as long as the world")
    }

    /// Schedules a failure.
    pub fn schedule_death(&mut self, at: u64, death: Death) {
        self.queue.add_ns(at, Event::Die(death));
    }

    /// Runs events until none is left before `until`, or until `is_done` returns true.
    pub fn run(&mut self, until: u64, is_done: impl Fn(&Self) -> bool) {
        while !is_done(self) && self.queue.next_at().is_some_and(|at| at.as_nanos() as u64 <= until)
        {
            let (at, event) = self.queue.pop_ns().expect("the next event was just seen");
            self.now = at;
            self.events += 1;
            self.handle(event);
        }
        if !is_done(self) {
            self.now = self.now.max(until);
        }
    }

    /// Releases memory that the processes do not need now.
    pub fn trim(&mut self) {
        self.processes.iter_mut().flatten().for_each(|process| process.trim());
        self.queue.trim();
        self.fabric.trim();
        self.requests.shrink_to_fit();
    }

    /// Returns the load of links between hosts since the previous call.
    pub fn take_load(&mut self) -> Load {
        self.fabric.take_load()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(wire, end, packet) => {
                let at = self.fabric.receive(wire, end, size_of_packet(&packet), self.now);
                if at > self.now {
                    self.queue.add_ns(at, Event::Received(wire, end, packet));
                } else {
                    self.receive(wire, end, packet);
                }
            }
            Event::Received(wire, end, packet) => self.receive(wire, end, packet),
            Event::Wake(life) => self.wake(life),
            Event::Dial(life, peer) => self.dial(life, peer),
            Event::Dialled(life, peer) => self.dialled(life, peer),
            Event::Tick(life) => {
                let now = Duration::from_nanos(self.now);
                self.serve(life, 0, |process, _| {
                    process.tick_at = None;
                    process.node.advance(now);
                });
            }
            Event::Reap(proc) => {
                let agent = self.shape.life(ProcId { slot: 0, ..proc });
                self.serve(agent, 0, |agent, _| agent.node.proc_died(proc, 0, Bytes::new()));
            }
            Event::NotifyHosts(dead) => self.notify_hosts(&dead),
            Event::Die(death) => self.die(death),
        }
    }

    /// Delivers a packet to a process, which may have to finish other work first.
    fn receive(&mut self, wire: WireId, end: usize, packet: Packet) {
        let Some((life, _)) = self.fabric.at_end(wire, end) else { return };
        let Some(process) = self.processes[life as usize].as_mut() else { return };
        let item = match packet {
            Packet::Open => InboxItem::Accept(wire),
            Packet::Frame(frame) => InboxItem::Frame(wire, frame),
            Packet::Close => InboxItem::Closed(wire),
        };
        if process.free_at <= self.now && process.inbox.is_empty() {
            return self.take(life, item);
        }
        process.inbox.push_back(item);
        if !std::mem::replace(&mut process.is_waking, true) {
            self.queue.add_ns(process.free_at, Event::Wake(life));
        }
    }

    fn wake(&mut self, life: Life) {
        let Some(process) = self.processes[life as usize].as_mut() else { return };
        if process.free_at > self.now {
            return self.queue.add_ns(process.free_at, Event::Wake(life));
        }
        process.is_waking = false;
        let Some(item) = process.inbox.pop_front() else { return };
        self.take(life, item);
        let Some(process) = self.processes[life as usize].as_mut() else { return };
        if !process.inbox.is_empty() {
            process.is_waking = true;
            self.queue.add_ns(process.free_at.max(self.now), Event::Wake(life));
        }
    }

    /// Lets a process handle a job from its inbox.
    fn take(&mut self, life: Life, item: InboxItem) {
        match item {
            InboxItem::Accept(wire) => {
                let is_far = self.fabric.is_far(wire);
                let link = self.serve(life, self.shape.links.work.receive_ns, |process, _| {
                    let node = &mut process.node;
                    let link = if is_far { node.accepted_remote() } else { node.accepted() };
                    process.has_link(link, wire);
                    link
                });
                self.fabric.accepted(wire, link.map_or(0, |link| link.0));
            }
            InboxItem::Frame(wire, frame) => {
                let end = self.fabric.end_of(wire, life);
                let Some((_, link)) = self.fabric.at_end(wire, end) else { return };
                let head = &frame.head;
                let place = u64::from(head.rank) << 32 | u64::from(head.flags);
                self.trace.words(&[self.now, u64::from(wire), head.kind as u64, head.seq, place]);
                self.trace.bytes(&frame.tail);
                let work = self.shape.links.work.receiving(size_of_frame(&frame));
                self.serve(life, work, |process, _| {
                    let link = LinkId(link);
                    process.node.note_activity(link);
                    process.node.receive(link, frame);
                });
            }
            InboxItem::Closed(wire) => {
                let end = self.fabric.end_of(wire, life);
                let Some((_, link)) = self.fabric.at_end(wire, end) else { return };
                self.fabric.close(wire, end);
                self.serve(life, 0, |process, _| {
                    process.node.link_down(LinkId(link));
                });
            }
        }
    }

    /// Lets a process act, and carries out the resulting effects.
    fn serve<T>(
        &mut self,
        life: Life,
        cost_ns: u64,
        act: impl FnOnce(&mut SimProcess, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let process = self.processes.get_mut(life as usize)?.as_mut()?;
        let mut context = Context {
            at: self.now.max(process.free_at) + cost_ns,
            endpoint_ns: self.shape.links.work.endpoint_ns,
            shape: &self.shape,
            oracle: &mut self.oracle,
            reached: &mut self.reached,
            requests: &mut self.requests,
        };
        process.node.set_now(Duration::from_nanos(self.now));
        let result = act(process, &mut context);
        process.settle(&mut context);
        let mut at = context.at;
        let work = self.shape.links.work;
        let mut dead = Vec::new();
        for request in self.requests.drain(..) {
            match request {
                Request::Send(wire, frame) => {
                    let bytes = size_of_frame(&frame);
                    at += work.sending(bytes);
                    let end = self.fabric.end_of(wire, life);
                    let arrives = self.fabric.send(wire, end, bytes, at);
                    let event = Event::Arrive(wire, 1 - end, Packet::Frame(frame));
                    self.queue.add_ns(arrives, event);
                }
                Request::Dial(peer, after) => {
                    let at = at + after.as_nanos() as u64;
                    self.queue.add_ns(at, Event::Dial(life, peer));
                }
                Request::Close(wire) => {
                    let end = self.fabric.end_of(wire, life);
                    if self.fabric.close(wire, end) {
                        let arrives = self.fabric.send(wire, end, 0, at);
                        self.queue.add_ns(arrives, Event::Arrive(wire, 1 - end, Packet::Close));
                    }
                }
                Request::CheckReplies(port) => self.ready_ports.push((at, port)),
                Request::HostDied(host) => dead.push(host),
            }
        }
        process.free_at = at;
        if life == ROOT && !dead.is_empty() {
            self.queue.add_ns(at, Event::NotifyHosts(dead));
        }
        if let Some(due) = process.node.next_deadline() {
            let due = (due.as_nanos() as u64).max(self.now);
            if process.tick_at.is_none_or(|tick| due < tick) {
                process.tick_at = Some(due);
                self.queue.add_ns(due, Event::Tick(life));
            }
        }
        Some(result)
    }

    fn dial(&mut self, life: Life, peer: ProcId) {
        let me = self.shape.at(life);
        let latency = self.shape.links.flight_ns(me.host.0, peer.host.0);
        let after = if me.host == peer.host {
            0
        } else if self.powerless_hosts.contains(&peer.host.0) {
            CONNECT_TIMEOUT_NS
        } else {
            // One round trip for the connection, one for TLS.
            4 * latency
        };
        self.queue.add_ns(self.now + after, Event::Dialled(life, peer));
    }

    fn dialled(&mut self, life: Life, peer: ProcId) {
        let listener = self.shape.life(peer);
        let (from, to) = (self.shape.at(life).host.0, peer.host.0);
        self.trace.words(&[self.now, u64::from(life), u64::from(listener)]);
        if !self.is_alive(listener) {
            self.serve(life, 0, |process, _| process.node.connect_failed(peer));
            return;
        }
        let Some(process) = self.processes[life as usize].as_mut() else { return };
        self.last_link_ns = self.now;
        let link = process.wires.len() as u32 + 1;
        let (wire, at) = self.fabric.open((life, from, link), (listener, to), self.now);
        self.queue.add_ns(at, Event::Arrive(wire, 1, Packet::Open));
        self.serve(life, 0, |process, _| {
            let link = process.node.connected(peer);
            process.has_link(link, wire);
        });
    }

    /// Notifies the agents of all other hosts that these hosts are dead.
    fn notify_hosts(&mut self, dead: &[HostId]) {
        let hosts = (1..self.shape.hosts).filter(|host| !self.powerless_hosts.contains(host));
        let agent = |host| Target { proc: ProcId::new(host, 0), rank: host };
        let spec = CallSpec {
            kind: Kind::Call,
            targets: hosts.map(agent).collect(),
            port: PortId::AGENT,
            meta_len: 0,
            part_count: 0,
            tail: pack(&dead.iter().map(|host| u64::from(host.0)).collect::<Vec<_>>()),
            window: u32::MAX,
            timeout: None,
        };
        let sent = self.program(|node| node.send(&spec));
        self.oracle.expect(sent.is_ok(), || format!("{dead:?} cannot be notified: {sent:?}"));
    }

    fn die(&mut self, death: Death) {
        let (kind, number) = match death {
            Death::Actor(rank) => (0, rank),
            Death::Proc(rank) => (1, rank),
            Death::Host(host) => (2, host),
        };
        self.trace.words(&[self.now, kind, u64::from(number)]);
        let has_died = match death {
            Death::Actor(rank) => {
                let life = self.shape.life(self.shape.proc(rank));
                self.serve(life, 0, |process, context| process.fail_actor(context.oracle))
                    == Some(true)
            }
            Death::Proc(rank) => {
                let proc = self.shape.proc(rank);
                let after = 1 + self.fault_rng.below(REAP_NS_MAX);
                self.queue.add_ns(self.now + after, Event::Reap(proc));
                self.kill(self.shape.life(proc), true)
            }
            Death::Host(host) => {
                let is_new = self.powerless_hosts.insert(host);
                for slot in 0..self.shape.slots() {
                    self.kill(self.shape.life(ProcId::new(host, slot)), false);
                }
                is_new
            }
        };
        if has_died {
            self.died.push(death);
        }
    }

    /// Kills a process. Its kernel closes its connections, unless the host has lost power, too.
    fn kill(&mut self, life: Life, closes: bool) -> bool {
        let Some(process) = self.processes[life as usize].take() else { return false };
        self.oracle.died(life, process.proc, Duration::from_nanos(self.now));
        for wire in process.wires {
            let end = self.fabric.end_of(wire, life);
            if self.fabric.close(wire, end) && closes {
                let arrives = self.fabric.send(wire, end, 0, self.now);
                self.queue.add_ns(arrives, Event::Arrive(wire, 1 - end, Packet::Close));
            }
        }
        true
    }
}

fn size_of_frame(frame: &Frame) -> u64 {
    (HEAD_LEN + frame.tail.len()) as u64
}

fn size_of_packet(packet: &Packet) -> u64 {
    match packet {
        Packet::Frame(frame) => size_of_frame(frame),
        Packet::Open | Packet::Close => 0,
    }
}
