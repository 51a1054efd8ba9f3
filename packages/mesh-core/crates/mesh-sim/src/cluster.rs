//! A cluster whose programs run outside of the simulator, which has their nodes, network and clock.
//!
//! The threads of the programs are real, but only one of them runs at a time. The driver calls
//! [`Cluster::advance`], runs the thread that it names until that thread waits again, and repeats.
//! Virtual time does not advance while a thread runs; in between, it advances to the next event.
//! The delay until a woken thread runs, the latencies of connections and the jitter of each frame
//! are drawn from the seed, so a seed determines the order in which everything happens.
//!
//! # Layout
//! - `threads`: waits of threads; `network`: messages between processes; `faults`: injected faults
//! - this file: processes, the event loop, and the effects of nodes

mod faults;
mod network;
mod threads;

pub use threads::{ThreadId, Waiter};

use crate::message::Life;
use crate::net::{Net, WireId};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use mesh_runtime::hash::FastMap;
use mesh_runtime::node::{Effect, Node, NodeConfig};
use mesh_wire::id::{HostId, PortId, ProcId};
use network::Timing;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use threads::{Thread, Waiting};

/// How far a read of the clock advances it, so that a loop that waits for a time ends.
const CLOCK_READ: Duration = Duration::from_nanos(200);

/// The next action of the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Run this thread until it waits.
    Thread(ThreadId),
    /// Handle a timer that the driver has set.
    Timer(u64),
    /// Check the descriptors that threads wait for: a queue of ready ports has changed.
    Descriptors,
    /// Nothing will ever happen again.
    Idle,
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

    /// Ends a process. If it was killed, its last messages may be lost.
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

    /// Reports `token` by [`Next::Timer`] at a time.
    pub fn set_timer(&mut self, at: Duration, token: u64) {
        self.queue.add(at.max(self.now), Event::Timer(token));
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
}
