//! A large world: its clock, its processes, and their events.

use super::fabric::{Fabric, Load, WireId};
use super::shape::Shape;
use super::site::{Job, Scene, Site, Want};
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
    /// The first bit of a parcel arrives at an end of a wire.
    Arrive(WireId, usize, Parcel),
    /// The parcel has arrived completely.
    Received(WireId, usize, Parcel),
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
    Tell(Vec<HostId>),
    /// An actor, process or host dies.
    Die(Death),
}

#[derive(Debug)]
enum Parcel {
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
    pub looks: Vec<(u64, PortId)>,
    /// The failures that have occurred.
    pub died: Vec<Death>,
    /// The time at which a process last connected to another.
    pub last_link_ns: u64,
    now: u64,
    queue: Queue<Event>,
    fabric: Fabric,
    sites: Vec<Option<Box<Site>>>,
    dark: BTreeSet<u32>,
    fate: Rng,
    wants: Vec<Want>,
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
            looks: Vec::new(),
            died: Vec::new(),
            last_link_ns: 0,
            now: 0,
            queue: Queue::new(),
            fabric: Fabric::new(shape.links, shape.hosts),
            sites: Vec::new(),
            dark: BTreeSet::new(),
            fate: Rng::new(shape.seed),
            wants: Vec::new(),
        };
        for life in 0..shape.lives() {
            let proc = shape.at(life);
            world.oracle.started(life, proc, 0);
            let site = shape.has(proc).then(|| Box::new(Site::new(&world.shape, proc)));
            world.sites.push(site);
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
        self.sites.get(life as usize).is_some_and(Option::is_some)
    }

    /// Connects processes to the agents of their hosts, and the controller to those agents.
    pub fn boot(&mut self) {
        let shape = self.shape;
        let heartbeat = Duration::from_secs(u64::from(shape.heartbeat_s));
        for life in 0..shape.lives() {
            let proc = shape.at(life);
            let agent = ProcId { slot: 0, ..proc };
            self.serve(life, 0, |site, _| {
                if proc.slot != 0 {
                    site.node.dial(agent);
                } else if life != ROOT && !heartbeat.is_zero() {
                    let watch = HostWatch::strict(LEASE / 3, Bytes::new());
                    site.node.monitor_host(HostId(0), watch);
                }
            });
            if proc.slot != 0 && shape.has(proc) {
                self.serve(shape.life(agent), 0, |site, _| site.node.proc_started(proc, 0));
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
    pub fn doom(&mut self, at: u64, death: Death) {
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
        self.sites.iter_mut().flatten().for_each(|site| site.trim());
        self.queue.trim();
        self.fabric.trim();
        self.wants.shrink_to_fit();
    }

    /// Returns the load of links between hosts since the previous call.
    pub fn take_load(&mut self) -> Load {
        self.fabric.take_load()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrive(wire, end, parcel) => {
                let at = self.fabric.land(wire, end, size_of_parcel(&parcel), self.now);
                if at > self.now {
                    self.queue.add_ns(at, Event::Received(wire, end, parcel));
                } else {
                    self.land(wire, end, parcel);
                }
            }
            Event::Received(wire, end, parcel) => self.land(wire, end, parcel),
            Event::Wake(life) => self.wake(life),
            Event::Dial(life, peer) => self.dial(life, peer),
            Event::Dialled(life, peer) => self.dialled(life, peer),
            Event::Tick(life) => {
                let now = Duration::from_nanos(self.now);
                self.serve(life, 0, |site, _| {
                    site.tick_at = None;
                    site.node.advance(now);
                });
            }
            Event::Reap(proc) => {
                let agent = self.shape.life(ProcId { slot: 0, ..proc });
                self.serve(agent, 0, |agent, _| agent.node.proc_died(proc, 0, Bytes::new()));
            }
            Event::Tell(dead) => self.tell(&dead),
            Event::Die(death) => self.die(death),
        }
    }

    /// Delivers a parcel to a process, which may have to finish other work first.
    fn land(&mut self, wire: WireId, end: usize, parcel: Parcel) {
        let Some((life, _)) = self.fabric.at_end(wire, end) else { return };
        let Some(site) = self.sites[life as usize].as_mut() else { return };
        let job = match parcel {
            Parcel::Open => Job::Accept(wire),
            Parcel::Frame(frame) => Job::Frame(wire, frame),
            Parcel::Close => Job::Closed(wire),
        };
        if site.free_at <= self.now && site.inbox.is_empty() {
            return self.take(life, job);
        }
        site.inbox.push_back(job);
        if !std::mem::replace(&mut site.is_waking, true) {
            self.queue.add_ns(site.free_at, Event::Wake(life));
        }
    }

    fn wake(&mut self, life: Life) {
        let Some(site) = self.sites[life as usize].as_mut() else { return };
        if site.free_at > self.now {
            return self.queue.add_ns(site.free_at, Event::Wake(life));
        }
        site.is_waking = false;
        let Some(job) = site.inbox.pop_front() else { return };
        self.take(life, job);
        let Some(site) = self.sites[life as usize].as_mut() else { return };
        if !site.inbox.is_empty() {
            site.is_waking = true;
            self.queue.add_ns(site.free_at.max(self.now), Event::Wake(life));
        }
    }

    /// Lets a process handle a job from its inbox.
    fn take(&mut self, life: Life, job: Job) {
        match job {
            Job::Accept(wire) => {
                let is_far = self.fabric.is_far(wire);
                let link = self.serve(life, self.shape.links.work.receive_ns, |site, _| {
                    let node = &mut site.node;
                    let link = if is_far { node.accepted_remote() } else { node.accepted() };
                    site.has_link(link, wire);
                    link
                });
                self.fabric.accepted(wire, link.map_or(0, |link| link.0));
            }
            Job::Frame(wire, frame) => {
                let end = self.fabric.end_of(wire, life);
                let Some((_, link)) = self.fabric.at_end(wire, end) else { return };
                let head = &frame.head;
                let place = u64::from(head.rank) << 32 | u64::from(head.flags);
                self.trace.words(&[self.now, u64::from(wire), head.kind as u64, head.seq, place]);
                self.trace.bytes(&frame.tail);
                let work = self.shape.links.work.receiving(size_of_frame(&frame));
                self.serve(life, work, |site, _| {
                    let link = LinkId(link);
                    site.node.note_activity(link);
                    site.node.receive(link, frame);
                });
            }
            Job::Closed(wire) => {
                let end = self.fabric.end_of(wire, life);
                let Some((_, link)) = self.fabric.at_end(wire, end) else { return };
                self.fabric.close(wire, end);
                self.serve(life, 0, |site, _| {
                    site.node.link_down(LinkId(link));
                });
            }
        }
    }

    /// Lets a process act, and carries out the resulting effects.
    fn serve<T>(
        &mut self,
        life: Life,
        cost_ns: u64,
        act: impl FnOnce(&mut Site, &mut Scene<'_>) -> T,
    ) -> Option<T> {
        let site = self.sites.get_mut(life as usize)?.as_mut()?;
        let mut scene = Scene {
            at: self.now.max(site.free_at) + cost_ns,
            endpoint_ns: self.shape.links.work.endpoint_ns,
            shape: &self.shape,
            oracle: &mut self.oracle,
            reached: &mut self.reached,
            wants: &mut self.wants,
        };
        site.node.set_now(Duration::from_nanos(self.now));
        let result = act(site, &mut scene);
        site.settle(&mut scene);
        let mut at = scene.at;
        let work = self.shape.links.work;
        let mut dead = Vec::new();
        for want in self.wants.drain(..) {
            match want {
                Want::Send(wire, frame) => {
                    let bytes = size_of_frame(&frame);
                    at += work.sending(bytes);
                    let end = self.fabric.end_of(wire, life);
                    let arrives = self.fabric.send(wire, end, bytes, at);
                    let event = Event::Arrive(wire, 1 - end, Parcel::Frame(frame));
                    self.queue.add_ns(arrives, event);
                }
                Want::Dial(peer, after) => {
                    let at = at + after.as_nanos() as u64;
                    self.queue.add_ns(at, Event::Dial(life, peer));
                }
                Want::Close(wire) => {
                    let end = self.fabric.end_of(wire, life);
                    if self.fabric.close(wire, end) {
                        let arrives = self.fabric.send(wire, end, 0, at);
                        self.queue.add_ns(arrives, Event::Arrive(wire, 1 - end, Parcel::Close));
                    }
                }
                Want::Look(port) => self.looks.push((at, port)),
                Want::HostDied(host) => dead.push(host),
            }
        }
        site.free_at = at;
        if life == ROOT && !dead.is_empty() {
            self.queue.add_ns(at, Event::Tell(dead));
        }
        if let Some(due) = site.node.next_deadline() {
            let due = (due.as_nanos() as u64).max(self.now);
            if site.tick_at.is_none_or(|tick| due < tick) {
                site.tick_at = Some(due);
                self.queue.add_ns(due, Event::Tick(life));
            }
        }
        Some(result)
    }

    fn dial(&mut self, life: Life, peer: ProcId) {
        let me = self.shape.at(life);
        let flight = self.shape.links.flight_ns(me.host.0, peer.host.0);
        let after = if me.host == peer.host {
            0
        } else if self.dark.contains(&peer.host.0) {
            CONNECT_TIMEOUT_NS
        } else {
            // One round trip for the connection, one for TLS.
            4 * flight
        };
        self.queue.add_ns(self.now + after, Event::Dialled(life, peer));
    }

    fn dialled(&mut self, life: Life, peer: ProcId) {
        let listener = self.shape.life(peer);
        let (from, to) = (self.shape.at(life).host.0, peer.host.0);
        self.trace.words(&[self.now, u64::from(life), u64::from(listener)]);
        if !self.is_alive(listener) {
            self.serve(life, 0, |site, _| site.node.connect_failed(peer));
            return;
        }
        let Some(site) = self.sites[life as usize].as_mut() else { return };
        self.last_link_ns = self.now;
        let link = site.wires.len() as u32 + 1;
        let (wire, at) = self.fabric.open((life, from, link), (listener, to), self.now);
        self.queue.add_ns(at, Event::Arrive(wire, 1, Parcel::Open));
        self.serve(life, 0, |site, _| {
            let link = site.node.connected(peer);
            site.has_link(link, wire);
        });
    }

    /// Notifies the agents of all other hosts that these hosts are dead.
    fn tell(&mut self, dead: &[HostId]) {
        let hosts = (1..self.shape.hosts).filter(|host| !self.dark.contains(host));
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
        self.oracle.expect(sent.is_ok(), || format!("{dead:?} cannot be told: {sent:?}"));
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
                self.serve(life, 0, |site, scene| site.fail_actor(scene.oracle)) == Some(true)
            }
            Death::Proc(rank) => {
                let proc = self.shape.proc(rank);
                let after = 1 + self.fate.below(REAP_NS_MAX);
                self.queue.add_ns(self.now + after, Event::Reap(proc));
                self.kill(self.shape.life(proc), true)
            }
            Death::Host(host) => {
                let is_new = self.dark.insert(host);
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
        let Some(site) = self.sites[life as usize].take() else { return false };
        self.oracle.died(life, site.proc, Duration::from_nanos(self.now));
        for wire in site.wires {
            let end = self.fabric.end_of(wire, life);
            if self.fabric.close(wire, end) && closes {
                let arrives = self.fabric.send(wire, end, 0, self.now);
                self.queue.add_ns(arrives, Event::Arrive(wire, 1 - end, Parcel::Close));
            }
        }
        true
    }
}

fn size_of_frame(frame: &Frame) -> u64 {
    (HEAD_LEN + frame.tail.len()) as u64
}

fn size_of_parcel(parcel: &Parcel) -> u64 {
    match parcel {
        Parcel::Frame(frame) => size_of_frame(frame),
        Parcel::Open | Parcel::Close => 0,
    }
}
