//! Frames that reach many hosts along a tree of hosts.
//!
//! A frame to many hosts is part of the session of its origin with each of them: it is numbered,
//! acknowledged and stored at both ends like any other. Only its route differs: the origin sends it
//! to a few hosts, which forward it along a tree. If a frame is lost with a dead host or a broken
//! connection, the session detects the gap and retransmits the frame directly. A failure of the
//! tree therefore has no other consequence. Replies travel up the same tree, combined into `Batch`
//! frames.

use super::batch_timer::BatchTimer;
use super::bulk::PIECE_LEN;
use super::peer::LinkState;
use super::{Effect, Node};
use crate::cast::Route;
use crate::hash::FastMap;
use bytes::{Bytes, BytesMut};
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};
use std::collections::HashSet;
use std::time::Duration;

/// Number of hosts to which a host forwards a short frame.
pub(super) const FANOUT: u16 = 16;
/// Bytes that may wait for a connection to the next host of a tree.
///
/// Further frames are retransmitted later.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Checks of the acks of a host without a new ack after which a tree counts as failed for the host.
const STALLED_CHECKS_MAX: u32 = 2;
/// Heartbeats for which a host receives its frames directly after a tree has failed for it.
const DIRECT_HEARTBEATS: u32 = 10;

/// Bits of the sequence number of a frame.
///
/// In transit through other hosts, the bits above them identify the session.
const SEQ_BITS: u32 = 48;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

/// The state of the trees that this host is part of.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) fanout: u16,
    /// Frames of the hosts below this one, by the caller whose cast they answer.
    batches: FastMap<Address, Batch>,
    /// The timer of the batches.
    batch_timer: BatchTimer,
    /// The host through which a cast arrived that was not delivered yet.
    parent: FastMap<Address, HostId>,
    /// Hosts that this one reaches through a gateway.
    behind_gateway: HashSet<HostId>,
}

#[derive(Debug)]
struct Batch {
    /// The host above, or the origin.
    to: HostId,
    /// Number of frames that are still to arrive.
    missing: usize,
    frames: BytesMut,
}

/// The state of a peer that receives frames through other hosts.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    /// The last frame that took another route and was not retransmitted since.
    up_to: u64,
    acked_at_check: u64,
    stalled_checks: u32,
    direct_until: Duration,
    /// Frames of other sessions that wait for the connection to this peer.
    waiting: Vec<Frame>,
    waiting_bytes: usize,
}

impl Default for Relays {
    fn default() -> Self {
        Self {
            fanout: FANOUT,
            batches: FastMap::default(),
            batch_timer: BatchTimer::default(),
            parent: FastMap::default(),
            behind_gateway: HashSet::new(),
        }
    }
}

impl Relays {
    /// Returns the host through which a cast of this caller arrived.
    ///
    /// Returns `None` if the cast came from its origin.
    pub(super) fn parent(&mut self, caller: Address) -> Option<HostId> {
        self.parent.remove(&caller)
    }

    /// Whether something started to wait after the time was last advanced.
    pub(super) fn is_untimed(&self) -> bool {
        self.batch_timer.is_untimed()
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.batch_timer.next_due()
    }
}

impl Node {
    /// Sets the number of hosts to which this one forwards a cast.
    ///
    /// A cast to at most this many hosts is sent directly.
    pub fn set_fanout(&mut self, fanout: u16) {
        self.relays.fanout = fanout.max(1);
    }

    /// Sets whether a host is reached through a gateway.
    ///
    /// Such hosts come last in trees: the gateway is probably a host of the tree as well, so its
    /// own copy of a frame need not pass through it twice.
    pub fn set_behind_gateway(&mut self, host: HostId, is_behind: bool) {
        if is_behind {
            self.relays.behind_gateway.insert(host);
        } else {
            self.relays.behind_gateway.remove(&host);
        }
    }

    /// Adds one short frame to the session with each of many hosts. `head.to` is filled in.
    pub(super) fn send_short_to_hosts(
        &mut self,
        hosts: &[HostId],
        head: Head,
        tail: &Bytes,
        fanout: u16,
    ) {
        let is_tree = hosts.len() > usize::from(fanout);
        let (mut by_tree, direct): (Vec<HostId>, Vec<HostId>) =
            hosts.iter().partition(|host| is_tree && self.is_relayable(**host));
        if !self.relays.behind_gateway.is_empty() {
            by_tree.sort_by_key(|host| self.relays.behind_gateway.contains(host));
        }
        for host in direct {
            self.transmit(Frame { head: Head { to: agent(host), ..head }, tail: tail.clone() });
        }
        if by_tree.is_empty() {
            return;
        }
        let mut route = Route::new(self.config.me.host, fanout, head.kind);
        for host in &by_tree {
            let to = agent(*host);
            let peer = self.peer(to.proc);
            let frame = Frame { head: Head { to, ..head }, tail: tail.clone() };
            let seq = peer.session.number(frame).head.seq;
            peer.relayed().up_to = seq;
            route.push(*host, seq | self.session_bits(*host));
        }
        let mut relay = Head::new(Kind::Relay, Address::default(), head.from);
        (relay.flags, relay.rank) = (head.flags, head.rank);
        let frame = Frame { head: relay, tail: route.encode(tail) };
        self.forward(&route, 0, &frame);
    }

    /// Whether frames for this host may go through other hosts.
    fn is_relayable(&self, host: HostId) -> bool {
        let is_up = self.link_to(agent(host).proc).is_some();
        is_up && self.failure_detector.monitors(host) && !self.is_sent_directly(host)
    }

    /// Whether a tree has failed for this host recently.
    pub(super) fn is_sent_directly(&self, host: HostId) -> bool {
        let relayed = self.peers.get(&agent(host).proc).and_then(|peer| peer.relayed.as_ref());
        relayed.is_some_and(|relayed| relayed.direct_until > self.now)
    }

    fn forward(&mut self, route: &Route, place: usize, frame: &Frame) {
        let is_dead = |below: usize| {
            route.host(below).is_none_or(|host| self.failure_detector.exit_report(host).is_some())
        };
        let below = route.tree().live_children(place, is_dead);
        for host in below.into_iter().filter_map(|place| route.host(place)) {
            let mut frame = frame.clone();
            frame.head.to = agent(host);
            self.transmit_relay(frame);
        }
    }

    /// Returns the mark of the session with a host, which is combined with its sequence numbers.
    ///
    /// A frame may be in transit over other hosts for longer than a machine serves as a host.
    fn session_bits(&self, host: HostId) -> u64 {
        let here = self.config.me.host;
        u64::from(self.host_epoch(here) + self.host_epoch(host)) << SEQ_BITS
    }

    /// Returns the sequence number of a frame in the session with a host.
    ///
    /// Returns `None` if the frame belongs to the session with a previous or later machine of that
    /// host.
    fn seq_in_session(&self, seq: u64, host: HostId) -> Option<u64> {
        let bits = self.session_bits(host);
        (seq & !SEQ_MASK == bits).then_some(seq & SEQ_MASK)
    }

    /// Hands a frame of another session to a neighbour.
    fn transmit_relay(&mut self, frame: Frame) {
        let to = frame.head.to.proc;
        let peer = self.peers.entry(to).or_default();
        match peer.link_state {
            LinkState::Up(link) => self.effects.push_back(Effect::Transmit { link, frame }),
            LinkState::Dead => {}
            LinkState::Idle | LinkState::Dialling { .. } => {
                let relayed = peer.relayed();
                relayed.waiting_bytes += frame.tail.len();
                if relayed.waiting_bytes <= WAITING_BYTES_MAX {
                    relayed.waiting.push(frame);
                }
                self.dial(to);
            }
        }
    }

    /// Takes the frames that have waited for the connection to a neighbour.
    pub(super) fn take_waiting_relays(&mut self, proc: ProcId) -> Vec<Frame> {
        let Some(relayed) = &mut self.peer(proc).relayed else { return Vec::new() };
        relayed.waiting_bytes = 0;
        std::mem::take(&mut relayed.waiting)
    }

    /// Handles a frame of another host's session: forwards it, and accepts it.
    pub(super) fn receive_relay(&mut self, frame: Frame) {
        let Some((route, tail)) = Route::decode(&frame.tail) else { return };
        let Some((place, seq)) = route.place_of(self.config.me.host) else { return };
        let Some(seq) = self.seq_in_session(seq, route.origin) else { return };
        let tree = route.tree();
        if frame.head.hops >= mesh_wire::frame::HOPS_MAX {
            return;
        }
        let mut onward = frame.clone();
        onward.head.hops += 1;
        self.forward(&route, place, &onward);
        let origin = agent(route.origin).proc;
        let caller = frame.head.from;
        let is_new = self.peers.get(&origin).is_some_and(|peer| seq > peer.session.received());
        if route.kind == Kind::Cast && is_new {
            let parent = tree.parent(place).filter(|parent| *parent != 0);
            let to = parent.and_then(|parent| route.host(parent));
            let below = tree.subtree(place).count() - 1;
            if let Some(parent) = to {
                self.relays.parent.insert(caller, parent);
            }
            if below > 0 {
                let to = to.unwrap_or(route.origin);
                let batch = Batch { to, missing: below + 1, frames: BytesMut::new() };
                self.relays.batches.insert(caller, batch);
                // The replies of this host are added to its own batch.
                self.relays.parent.insert(caller, self.config.me.host);
            }
        }
        let me = Address { proc: self.config.me, port: PortId::NONE };
        let mut head = Head::new(route.kind, me, caller);
        (head.flags, head.rank, head.seq) = (frame.head.flags, frame.head.rank, seq);
        self.accept_frame(origin, Frame { head, tail });
    }

    /// Sends a frame to its caller through the host from which the cast arrived.
    pub(super) fn send_up(&mut self, parent: Option<HostId>, frame: Frame) {
        let origin = frame.head.to.proc.host.agent();
        let Some(parent) = parent.filter(|_| frame.tail.len() <= PIECE_LEN) else {
            return self.dispatch(frame);
        };
        let is_up = parent == self.config.me.host
            || matches!(self.peer(agent(parent).proc).link_state, LinkState::Up(_));
        if !is_up || !matches!(self.peer(origin).link_state, LinkState::Up(_)) {
            return self.dispatch(frame);
        }
        let caller = frame.head.to;
        let peer = self.peer(origin);
        let frame = peer.session.stamp(frame);
        peer.relayed().up_to = frame.head.seq;
        let mut encoded = BytesMut::with_capacity(HEAD_LEN + frame.tail.len());
        let seq = frame.head.seq | self.session_bits(origin.host);
        let head = Head { seq, ..frame.head };
        encoded.extend_from_slice(&head.encode(frame.tail.len()));
        encoded.extend_from_slice(&frame.tail);
        if parent == self.config.me.host {
            self.add_to_batch(caller, 1, &encoded);
        } else {
            self.send_batch(parent, caller, encoded.freeze());
        }
    }

    fn add_to_batch(&mut self, caller: Address, count: usize, frames: &[u8]) {
        let Some(batch) = self.relays.batches.get_mut(&caller) else {
            // The batch was sent up already: this frame follows directly.
            return self.send_batch(caller.proc.host, caller, Bytes::copy_from_slice(frames));
        };
        batch.frames.extend_from_slice(frames);
        batch.missing = batch.missing.saturating_sub(count);
        let (to, is_full) = (batch.to, batch.missing == 0 || batch.frames.len() > PIECE_LEN);
        if is_full {
            let frames = batch.frames.split().freeze();
            if batch.missing == 0 {
                self.relays.batches.remove(&caller);
                if self.relays.batches.is_empty() {
                    self.relays.batch_timer.end();
                }
            }
            self.send_batch(to, caller, frames);
        } else {
            self.relays.batch_timer.begin();
        }
    }

    fn send_batch(&mut self, to: HostId, caller: Address, frames: Bytes) {
        let head = Head::new(Kind::Batch, agent(to), caller);
        self.transmit_relay(Frame { head, tail: frames });
    }

    /// Advances the time of the batches.
    pub(super) fn flush_due_batches(&mut self, now: Duration) {
        if !self.relays.batch_timer.is_over(now) {
            return;
        }
        let mut batches: Vec<(Address, Batch)> = self.relays.batches.drain().collect();
        batches.sort_unstable_by_key(|(caller, _)| *caller);
        for (caller, batch) in batches {
            if batch.frames.is_empty() {
                self.relays.batches.insert(caller, batch);
            } else {
                self.send_batch(batch.to, caller, batch.frames.freeze());
            }
        }
    }

    /// Handles frames on their way up: for this host, or for the one above.
    pub(super) fn receive_batch(&mut self, frame: &Frame) {
        let caller = frame.head.from;
        let frames = unpack(&frame.tail);
        if caller.proc.host != self.config.me.host {
            return self.add_to_batch(caller, frames.len(), &frame.tail);
        }
        for mut frame in frames {
            let host = frame.head.from.proc.host;
            let Some(seq) = self.seq_in_session(frame.head.seq, host) else { continue };
            frame.head.seq = seq;
            let from = frame.head.from.proc.host.agent();
            if from.host != self.config.me.host && frame.head.kind == Kind::Replies {
                self.accept_frame(from, frame);
            }
        }
    }

    /// Checks whether a host receives the frames that were sent to it through other hosts.
    ///
    /// Frames that it does not receive are retransmitted directly.
    pub(super) fn check_relayed(&mut self, host: HostId, heartbeat: Duration) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&agent(host).proc) else { return };
        let acked = peer.session.acked();
        let Some(relayed) = &mut peer.relayed else { return };
        let is_stuck = acked < relayed.up_to && acked == relayed.acked_at_check;
        relayed.stalled_checks = if is_stuck { relayed.stalled_checks + 1 } else { 0 };
        relayed.acked_at_check = acked;
        if relayed.stalled_checks >= STALLED_CHECKS_MAX {
            relayed.direct_until = now + heartbeat * DIRECT_HEARTBEATS;
            self.retransmit(agent(host).proc);
            self.send_pieces();
        }
    }

    /// Retransmits forwarded frames that are not acknowledged, after the loss of a neighbour.
    pub(super) fn retransmit_relayed(&mut self) {
        let is_relayed = |proc: &ProcId| {
            let peer = &self.peers[proc];
            peer.relayed.as_ref().is_some_and(|relayed| peer.session.acked() < relayed.up_to)
        };
        let mut procs: Vec<ProcId> = self.peers.keys().copied().filter(is_relayed).collect();
        procs.sort_unstable();
        for proc in procs {
            self.retransmit(proc);
        }
    }

    fn retransmit(&mut self, proc: ProcId) {
        let Some(peer) = self.peers.get_mut(&proc) else { return };
        if let Some(relayed) = &mut peer.relayed {
            (relayed.up_to, relayed.stalled_checks) = (0, 0);
        }
        let LinkState::Up(link) = peer.link_state else { return };
        let received = peer.session.acked();
        for frame in peer.session.resume(received) {
            self.effects.push_back(Effect::Transmit { link, frame });
        }
    }
}

/// Returns the address of the agent of a host.
fn agent(host: HostId) -> Address {
    Address { proc: host.agent(), port: PortId::NONE }
}

/// Returns the frames in a batch, up to the first invalid one.
fn unpack(batch: &Bytes) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(head) = batch.get(at..).and_then(|rest| rest.first_chunk::<HEAD_LEN>()) {
        let Ok((head, len)) = Head::decode(head) else { break };
        let start = at + HEAD_LEN;
        if batch.len() - start < len {
            break;
        }
        frames.push(Frame { head, tail: batch.slice(start..start + len) });
        at = start + len;
    }
    frames
}
