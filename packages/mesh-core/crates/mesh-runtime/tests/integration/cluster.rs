//! Hosts with an agent and some processes each, and their connections, driven by hand.

use bytes::Bytes;
use mesh_runtime::node::{
    BulkId, CallSpec, Effect, HostWatch, LinkId, Node, NodeConfig, Progress, ReceivedBody, Reply,
    Target, first_incarnation,
};
use mesh_runtime::segment::{DirectReceive, ReceiveResult, SegmentLimits, SegmentPool};
use mesh_wire::frame::{Frame, HEAD_LEN, Kind};
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Four times the interval at which a host is checked in these tests.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a host may be silent in these tests while its machine acknowledges.
pub(crate) const UNRESPONSIVE_TIMEOUT: Duration = Duration::from_secs(10);

type End = (ProcId, LinkId);

/// Some hosts.
pub(crate) struct Cluster {
    pub(crate) nodes: BTreeMap<ProcId, Node>,
    /// The other end of each connection.
    ends: BTreeMap<End, End>,
    /// Frames in transit to each end.
    wires: BTreeMap<End, VecDeque<Frame>>,
    /// Frames that have left a host for another, with their kinds and lengths in bytes.
    pub(crate) left: BTreeMap<(HostId, HostId), Vec<(Kind, usize)>>,
    pub(crate) dead: BTreeSet<HostId>,
    /// Hosts whose processes are stopped while their machines acknowledge.
    pub(crate) stopped: BTreeSet<HostId>,
    pub(crate) now: Duration,
    /// The seed that selects the next connection to deliver from; 0 takes them in order.
    pub(crate) seed: u64,
    /// One of this many forwarded frames between hosts is lost; 0 for none.
    pub(crate) loses_one_in: u64,
    /// The shared memory of agents that have some.
    pub(crate) pools: BTreeMap<ProcId, Arc<SegmentPool>>,
    direct_receives: BTreeMap<(ProcId, BulkId), DirectReceive>,
    fanout: u16,
    /// The epochs of hosts whose machine was exchanged.
    epochs: BTreeMap<HostId, u32>,
}

impl Cluster {
    /// Creates hosts 0 to `hosts - 1`, with an agent and `procs` processes each.
    ///
    /// Host 0 monitors all.
    pub(crate) fn new(hosts: u32, procs: u32, fanout: u16) -> Self {
        let mut cluster = Self {
            nodes: BTreeMap::new(),
            ends: BTreeMap::new(),
            wires: BTreeMap::new(),
            left: BTreeMap::new(),
            dead: BTreeSet::new(),
            stopped: BTreeSet::new(),
            now: Duration::ZERO,
            seed: 0,
            loses_one_in: 0,
            pools: BTreeMap::new(),
            direct_receives: BTreeMap::new(),
            fanout,
            epochs: BTreeMap::new(),
        };
        for host in 0..hosts {
            for slot in 0..=procs {
                let me = ProcId::new(host, slot);
                let mut node = new_node(me, 0, fanout);
                if slot == 0 {
                    (1..=procs).for_each(|slot| node.proc_started(ProcId::new(host, slot), 0));
                } else {
                    node.dial(ProcId::new(host, 0));
                }
                cluster.nodes.insert(me, node);
            }
        }
        for host in 1..hosts {
            let root = cluster.nodes.get_mut(&ProcId::new(0, 0)).expect("host 0 is there");
            let watch = HostWatch {
                heartbeat: HEARTBEAT,
                unresponsive_timeout: UNRESPONSIVE_TIMEOUT,
                exit_report: Bytes::from_static(b"silent"),
                unresponsive: Bytes::from_static(b"unresponsive"),
            };
            root.monitor_host(HostId(host), watch);
            root.dial(ProcId::new(host, 0));
            let node = cluster.nodes.get_mut(&ProcId::new(host, 0)).expect("it was added");
            node.monitor_host(HostId(0), HostWatch::strict(HEARTBEAT, Bytes::new()));
        }
        cluster.run();
        cluster.left.clear();
        cluster
    }

    pub(crate) fn root(&mut self) -> &mut Node {
        self.node(0, 0)
    }

    pub(crate) fn node(&mut self, host: u32, slot: u32) -> &mut Node {
        self.nodes.get_mut(&ProcId::new(host, slot)).expect("the process is there")
    }

    /// Gives shared memory to the agent of a host, which receives long messages into it.
    pub(crate) fn add_pool(&mut self, host: u32) -> Arc<SegmentPool> {
        let agent = ProcId::new(host, 0);
        let pool = Arc::new(SegmentPool::new(agent, SegmentLimits::default()));
        self.pools.insert(agent, Arc::clone(&pool));
        self.node(host, 0).enable_direct_receive();
        pool
    }

    fn write_direct(&mut self, proc: ProcId, id: BulkId, len: usize, at: usize, bytes: Bytes) {
        let pool = &self.pools[&proc];
        let receive = self
            .direct_receives
            .entry((proc, id))
            .or_insert_with(|| pool.begin_direct_receive(len));
        if !receive.write(at, bytes) {
            return;
        }
        let receive = self.direct_receives.remove(&(proc, id)).expect("it was just written to");
        let node = self.nodes.get_mut(&proc).expect("it has just acted");
        let body = match receive.finish(&node.readers_of(id)) {
            ReceiveResult::Plain(bytes) => ReceivedBody::Plain(bytes),
            ReceiveResult::Shared(filled) => ReceivedBody::Shared(filled.parts[0]),
        };
        node.body_received(id, body);
    }

    /// Cuts the power of a host.
    pub(crate) fn kill(&mut self, host: u32) {
        self.dead.insert(HostId(host));
        let is_of_it = |end: &End| end.0.host.0 == host;
        let cut: Vec<End> = self.ends.keys().copied().filter(is_of_it).collect();
        for end in cut {
            self.wires.remove(&end);
            // The other side is not notified, as with a pulled cable.
        }
    }

    /// Kills a process; the agent of its host notices.
    pub(crate) fn kill_proc(&mut self, proc: ProcId) {
        let cut: Vec<End> = self.ends.keys().copied().filter(|end| end.0 == proc).collect();
        for end in cut {
            self.wires.remove(&end);
            if let Some(other) = self.ends.remove(&end) {
                self.ends.remove(&other);
                self.nodes.get_mut(&other.0).expect("it is linked").link_down(other.1);
            }
        }
        let incarnation = self.nodes.remove(&proc).map_or(0, |node| node.incarnation());
        let detail = Bytes::from_static(b"9");
        self.node(proc.host.0, 0).proc_died(proc, incarnation, detail);
    }

    /// Kills a process; the agent of its host notices, but no process has read the end of a
    /// connection.
    pub(crate) fn kill_proc_unread(&mut self, proc: ProcId) {
        let cut: Vec<End> = self.ends.keys().copied().filter(|end| end.0 == proc).collect();
        for end in cut {
            self.wires.remove(&end);
            if let Some(other) = self.ends.remove(&end) {
                self.ends.remove(&other);
            }
        }
        self.nodes.remove(&proc);
        self.node(proc.host.0, 0).proc_died(proc, 0, Bytes::from_static(b"9"));
    }

    /// Replaces the processes of a host by new ones, as if another machine had taken over.
    ///
    /// No process is notified.
    pub(crate) fn exchange_machine(&mut self, host: u32, procs: u32, epoch: u32) {
        let is_of_it = |end: &End| end.0.host.0 == host;
        let cut: Vec<End> = self.ends.keys().copied().filter(is_of_it).collect();
        for end in cut {
            self.wires.remove(&end);
            if let Some(other) = self.ends.remove(&end) {
                self.ends.remove(&other);
                self.wires.remove(&other);
            }
        }
        let first = first_incarnation(epoch);
        for slot in 0..=procs {
            let me = ProcId::new(host, slot);
            let mut node = new_node(me, first + u32::from(slot > 0), self.fanout);
            for (other, epoch) in &self.epochs {
                node.host_replaced(*other, *epoch);
            }
            if slot == 0 {
                for slot in 1..=procs {
                    node.proc_started(ProcId::new(host, slot), first + 1);
                }
                node.monitor_host(HostId(0), HostWatch::strict(HEARTBEAT, Bytes::new()));
            } else {
                node.dial(ProcId::new(host, 0));
            }
            self.nodes.insert(me, node);
        }
        self.epochs.insert(HostId(host), epoch);
    }

    /// Breaks the connection between two agents; both notice.
    pub(crate) fn break_link(&mut self, one: u32, other: u32) {
        let (one, other) = (ProcId::new(one, 0), ProcId::new(other, 0));
        let is_it = |(from, to): &(&End, &End)| from.0 == one && to.0 == other;
        let ends: Vec<(End, End)> =
            self.ends.iter().filter(is_it).map(|(from, to)| (*from, *to)).collect();
        for (here, there) in ends {
            for end in [here, there] {
                self.ends.remove(&end);
                self.wires.remove(&end);
                if let Some(node) = self.nodes.get_mut(&end.0) {
                    node.link_down(end.1);
                }
            }
        }
    }

    fn random(&mut self, below: usize) -> usize {
        if self.seed == 0 {
            return 0;
        }
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % below as u64) as usize
    }

    /// Delivers frames until none are left.
    pub(crate) fn run(&mut self) {
        while self.step() {}
    }

    /// Carries out the effects of all nodes, then delivers one frame; `false` if there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.act();
        let stopped = &self.stopped;
        let can_take = |end: &End, queue: &VecDeque<Frame>| {
            !queue.is_empty() && !stopped.contains(&end.0.host)
        };
        let full: Vec<End> = self
            .wires
            .iter()
            .filter(|(end, queue)| can_take(end, queue))
            .map(|(end, _)| *end)
            .collect();
        if full.is_empty() {
            return false;
        }
        let end = full[self.random(full.len())];
        let frame = self.wires.get_mut(&end).and_then(VecDeque::pop_front);
        if let (Some(frame), false) = (frame, self.dead.contains(&end.0.host)) {
            let node = self.nodes.get_mut(&end.0).expect("links lead to processes");
            node.note_activity(end.1);
            node.receive(end.1, frame);
        }
        true
    }

    fn act(&mut self) {
        loop {
            let runs = |proc: &ProcId| !self.stopped.contains(&proc.host);
            let procs: Vec<ProcId> = self.nodes.keys().copied().filter(runs).collect();
            let mut did_something = false;
            for proc in procs {
                let effects: Vec<Effect> =
                    self.nodes.get_mut(&proc).expect("it is a key").effects().collect();
                for effect in effects {
                    did_something = true;
                    self.carry_out(proc, effect);
                }
            }
            if !did_something {
                return;
            }
        }
    }

    fn carry_out(&mut self, proc: ProcId, effect: Effect) {
        if self.dead.contains(&proc.host) {
            return;
        }
        match effect {
            Effect::Transmit { link, frame } => self.send((proc, link), frame),
            Effect::Connect { peer, .. } if self.dead.contains(&peer.host) => {}
            Effect::Connect { peer, .. } => {
                let there = self.nodes.get_mut(&peer).expect("it is a process of the cluster");
                let is_remote = peer.host != proc.host;
                let at = if is_remote { there.accepted_remote() } else { there.accepted() };
                // The greeting is sent with the other effects, once both ends are known.
                let node = self.nodes.get_mut(&proc).expect("it has just acted");
                let here = node.connected(peer);
                self.ends.insert((proc, here), (peer, at));
                self.ends.insert((peer, at), (proc, here));
            }
            Effect::Close { link } => {
                if let Some(other) = self.ends.remove(&(proc, link)) {
                    self.ends.remove(&other);
                    self.wires.remove(&other);
                    if let Some(node) = self.nodes.get_mut(&other.0) {
                        node.link_down(other.1);
                    }
                }
            }
            Effect::WriteDirect { id, len, at, bytes } => {
                self.write_direct(proc, id, len, at, bytes)
            }
            Effect::Abort(id) => drop(self.direct_receives.remove(&(proc, id))),
            Effect::Probe(host) => {
                let ago = (!self.dead.contains(&host)).then_some(Duration::ZERO);
                self.nodes.get_mut(&proc).expect("it has just acted").probed(host, ago);
            }
            Effect::Released { reader, segment, generation } => {
                if let Some(pool) = self.pools.get(&proc) {
                    pool.release(segment, generation, reader);
                }
            }
            _ => {}
        }
    }

    fn send(&mut self, from: End, frame: Frame) {
        let Some(to) = self.ends.get(&from).copied() else { return };
        if from.0.host != to.0.host {
            let record = (frame.head.kind, HEAD_LEN + frame.tail.len());
            self.left.entry((from.0.host, to.0.host)).or_default().push(record);
            let one_in = self.loses_one_in;
            if one_in > 0
                && matches!(frame.head.kind, Kind::Relay | Kind::Batch)
                && self.random(one_in as usize) == 0
            {
                return;
            }
        }
        self.wires.entry(to).or_default().push_back(frame);
    }

    /// Advances the time, in steps of at most an eighth of a heartbeat.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(1).max((until - self.now).min(HEARTBEAT / 8));
            let now = self.now;
            let (dead, stopped) = (self.dead.clone(), self.stopped.clone());
            for (proc, node) in &mut self.nodes {
                if !dead.contains(&proc.host) && !stopped.contains(&proc.host) {
                    node.advance(now);
                }
            }
            self.run();
        }
    }

    /// Takes the messages of an actor and replies to each with the result of `reply_port`.
    pub(crate) fn serve(
        &mut self,
        proc: ProcId,
        port: PortId,
        respond: impl Fn(&Frame) -> Bytes,
    ) -> Vec<Frame> {
        let mut messages = Vec::new();
        let node = self.nodes.get_mut(&proc).expect("it is a process of the cluster");
        node.take_messages(port, usize::MAX, &mut messages).expect("its mailbox is open");
        for message in &messages {
            node.reply(&message.head, 0, (0, 0), respond(message));
        }
        messages
    }

    /// Returns the replies that have arrived, by rank, and whether the call is complete.
    pub(crate) fn replies(
        &mut self,
        from: ProcId,
        reply_port: PortId,
    ) -> (BTreeMap<u32, Reply>, bool) {
        let mut replies = Vec::new();
        let node = self.nodes.get_mut(&from).expect("it is a process of the cluster");
        let progress = node.take_replies(reply_port, &mut replies);
        let by_rank = replies.into_iter().map(|reply| (reply.rank, reply)).collect();
        (by_rank, progress == Progress::Complete)
    }

    /// Returns how many frames of a kind a host has sent to another, and their bytes.
    pub(crate) fn sent(&self, from: u32, to: u32, kind: Kind) -> (usize, usize) {
        let records = self.left.get(&(HostId(from), HostId(to))).into_iter().flatten();
        records
            .filter(|(one, _)| *one == kind)
            .fold((0, 0), |(n, sum), (_, len)| (n + 1, sum + len))
    }
}

fn new_node(me: ProcId, incarnation: u32, fanout: u16) -> Node {
    let mut node = Node::new(NodeConfig {
        me,
        incarnation,
        job: JobId([1; 16]),
        token: [2; 32],
        backlog_bytes_max: 1 << 30,
    });
    node.set_fanout(fanout);
    node
}

/// Returns all processes of these hosts, slots from 1, ranked in order.
pub(crate) fn all_procs(hosts: std::ops::Range<u32>, procs: u32) -> Vec<Target> {
    let all = hosts.flat_map(|host| (1..=procs).map(move |slot| ProcId::new(host, slot)));
    (0..).zip(all).map(|(rank, proc)| Target { proc, rank }).collect()
}

/// Returns a call with this body.
pub(crate) fn call(targets: Vec<Target>, port: PortId, body: Bytes) -> CallSpec {
    CallSpec {
        kind: Kind::Call,
        targets: targets.into(),
        port,
        meta_len: 0,
        part_count: 0,
        tail: body,
        window: 64,
        timeout: None,
    }
}
