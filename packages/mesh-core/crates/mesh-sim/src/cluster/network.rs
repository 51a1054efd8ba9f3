//! Messages between processes, and their latencies.

use super::{Cluster, Event, Member};
use crate::message::Life;
use crate::net::{Arrival, Packet, WireId};
use crate::rng::Rng;
use mesh_runtime::node::{LinkId, epoch_of};
use mesh_wire::frame::{Frame, Head};
use mesh_wire::id::{HostId, ProcId};
use std::time::Duration;

/// The latencies of a cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The typical latency between hosts in microseconds; within a host it is a tenth.
    pub(super) latency_us: u64,
    /// The maximum jitter of a frame in microseconds.
    pub(super) jitter_us: u64,
    /// The maximum delay in microseconds until a woken thread runs.
    pub(super) wake_us: u64,
    /// How many of 1,000 frames and wake-ups are delayed for much longer.
    pub(super) hiccup_permille: u64,
    /// The maximum duration of such a delay in microseconds.
    pub(super) hiccup_us: u64,
}

impl Timing {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self {
            latency_us: rng.between(10, 1000),
            jitter_us: if rng.chance(300) { 0 } else { rng.between(1, 3000) },
            wake_us: rng.between(1, 200),
            hiccup_permille: if rng.chance(500) { 0 } else { rng.between(1, 20) },
            hiccup_us: rng.between(1000, 100_000),
        }
    }
}

impl Cluster {
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

    /// Notifies a host that it was declared dead; returns whether the host can be reached.
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

    pub(super) fn transmit(&mut self, life: Life, link: LinkId, frame: Frame) {
        let host = self.members[life as usize].id.host;
        let jitter = Duration::from_nanos(self.rng.below(self.timing.jitter_us * 1000 + 1));
        let delay = (jitter + self.hiccup()) * self.slowness_of(host);
        let arrival = self.net.send((life, link), frame, delay, self.now);
        self.schedule(arrival);
    }

    pub(super) fn schedule(&mut self, arrivals: impl IntoIterator<Item = Arrival>) {
        for Arrival { at, wire, end } in arrivals {
            self.queue.add(at, Event::Arrive(wire, end));
        }
    }

    /// Delivers the next packet of a wire; returns whether there was one.
    pub(super) fn arrive(&mut self, wire: WireId, end: usize) -> bool {
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

    /// Returns the process that a dial reaches: the one on the machine that the dialer knows.
    ///
    /// While a host moves, two machines serve as it.
    fn listener(&self, life: Life, peer: ProcId) -> Option<Life> {
        let newest = *self.by_proc.get(&peer)?;
        let dialer = &self.members[life as usize];
        let epoch = if dialer.id.host == peer.host {
            epoch_of(dialer.node.incarnation())
        } else {
            dialer.node.host_epoch(peer.host)
        };
        let is_known = |one: &Member| epoch_of(one.node.incarnation()) == epoch;
        if is_known(&self.members[newest as usize]) {
            return Some(newest);
        }
        let known =
            self.members.iter().rposition(|one| one.is_alive && one.id == peer && is_known(one));
        Some(known.map_or(newest, |known| known as Life))
    }

    pub(super) fn dial(&mut self, life: Life, peer: ProcId) {
        let member = &self.members[life as usize];
        if !member.is_alive {
            return;
        }
        let me = member.id;
        let listener = self.listener(life, peer).filter(|_| self.is_connected(me.host, peer.host));
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

    pub(super) fn hiccup(&mut self) -> Duration {
        if !self.rng.chance(self.timing.hiccup_permille) {
            return Duration::ZERO;
        }
        Duration::from_micros(self.rng.below(self.timing.hiccup_us) + 1)
    }
}
