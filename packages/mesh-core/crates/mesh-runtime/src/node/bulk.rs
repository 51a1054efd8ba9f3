//! Long frames between hosts are sent in pieces, so that short frames do not wait for them.
//!
//! Pieces are frames of the session like others, but only some are in flight at any time: the rest
//! follows as they are acknowledged, and other frames are sent in between. The receiver reassembles
//! them. Later frames from the same sender to the same receiver wait until the long frame is
//! complete. Other frames do not wait, because order is only guaranteed between a sender and a
//! receiver.

use super::Node;
use super::direct_receive::DirectParts;
use crate::cast::CastHeader;
use crate::hash::FastMap;
use bytes::{Bytes, BytesMut};
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind, TAIL_LEN_MAX};
use mesh_wire::id::{Address, HostId, PortId, ProcId};
use std::collections::VecDeque;

/// Length in bytes of a piece, and of the longest frame that is sent whole.
pub(super) const PIECE_LEN: usize = 256 << 10;
/// Bytes in flight to a host at any time.
const WINDOW: usize = 2 << 20;
/// Flag of the first piece: it contains the head of the frame and everything before the message.
const FIRST: u8 = 1;
/// Number of hosts to which a host forwards a piece: one, so that each byte leaves each host once.
const FANOUT: u16 = 1;
/// Long frames of one peer that may be in flight at once.
const ASSEMBLIES_MAX: usize = 1024;

/// Outgoing and incoming long frames.
#[derive(Debug, Default)]
pub(super) struct Bulks {
    /// Parts that arrive for processes of this host are kept in shared memory.
    pub(super) is_direct_receive_enabled: bool,
    next_id: u32,
    sending: VecDeque<Bulk>,
    /// By the sending agent and its number for the frame.
    assemblies: FastMap<BulkId, Assembly>,
    /// Frames that wait behind long frames, by the agent that sent them and their key.
    queues: FastMap<(ProcId, OrderKey), VecDeque<QueuedFrame>>,
}

/// An incoming long frame: the agent that sends it, and its number there.
pub type BulkId = (ProcId, u32);
/// The unit within which order is preserved: the sender, and the port to which it sends.
type OrderKey = (ProcId, PortId);

#[derive(Debug)]
struct Bulk {
    id: u32,
    hosts: Vec<HostId>,
    rest: Bytes,
}

/// A long frame that is not complete yet.
#[derive(Debug)]
pub(super) struct Assembly {
    pub(super) head: Head,
    /// The bytes that have arrived and are stored here.
    pub(super) tail: BytesMut,
    /// Number of bytes of `tail` that precede the message.
    pub(super) start_len: usize,
    /// Length in bytes of the whole tail.
    pub(super) len: usize,
    /// The part of the message that is kept in shared memory.
    pub(super) direct_parts: Option<DirectParts>,
    order_key: OrderKey,
}

#[derive(Debug)]
enum QueuedFrame {
    /// A frame that is not complete yet.
    Incomplete(u32),
    Complete(Frame),
}

impl Bulks {
    pub(super) fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Whether a long frame has arrived in part.
    pub(super) fn is_receiving(&self) -> bool {
        !self.assemblies.is_empty()
    }

    /// Returns an incoming long frame.
    pub(super) fn assembly(&mut self, id: BulkId) -> Option<&mut Assembly> {
        self.assemblies.get_mut(&id)
    }

    /// Forgets a dead host.
    ///
    /// Returns the incomplete frames from the host that were being received into shared memory.
    pub(super) fn discard_host(&mut self, agent: ProcId) -> Vec<BulkId> {
        for bulk in &mut self.sending {
            bulk.hosts.retain(|host| *host != agent.host);
        }
        self.sending.retain(|bulk| !bulk.hosts.is_empty());
        self.queues.retain(|(from, _), _| *from != agent);
        let lost = self.assemblies.extract_if(|(from, _), _| *from == agent);
        lost.filter(|(_, assembly)| assembly.direct_parts.is_some()).map(|(id, _)| id).collect()
    }
}

impl Node {
    /// Sends a frame to the agents of some hosts, in pieces if it is long.
    ///
    /// The tail is `start` followed by `rest`. `head.to` is filled in if there are several hosts.
    pub(super) fn send_to_hosts(
        &mut self,
        hosts: &[HostId],
        head: Head,
        start: Bytes,
        rest: Bytes,
    ) {
        let len = start.len() + rest.len();
        if len <= PIECE_LEN {
            let tail =
                if start.is_empty() { rest } else { [&start[..], &rest[..]].concat().into() };
            return self.send_short_to_hosts(hosts, head, &tail, self.relays.fanout);
        }
        self.bulks.next_id = self.bulks.next_id.wrapping_add(1);
        let id = self.bulks.next_id;
        let me = Address { proc: self.config.me, port: PortId::NONE };
        let mut first = Head::new(Kind::Piece, Address::default(), me);
        (first.flags, first.rank) = (FIRST, id);
        let tail = [&head.encode(len)[..], &start[..]].concat().into();
        self.send_short_to_hosts(hosts, first, &tail, FANOUT);
        for host in hosts {
            self.peer(host.agent()).bulk_bytes += rest.len();
        }
        self.bulks.sending.push_back(Bulk { id, hosts: hosts.to_vec(), rest });
        self.send_pieces();
    }

    /// Sends pieces of all long frames in turn, as far as acks permit.
    pub(super) fn send_pieces(&mut self) {
        let mut full = 0;
        while full < self.bulks.sending.len() {
            let Some(mut bulk) = self.bulks.sending.pop_front() else { return };
            self.split_off(&mut bulk);
            if bulk.hosts.is_empty() {
                continue;
            }
            if bulk.hosts.iter().any(|host| self.is_window_full(*host)) {
                self.bulks.sending.push_back(bulk);
                full += 1;
                continue;
            }
            full = 0;
            let piece = bulk.rest.split_to(PIECE_LEN.min(bulk.rest.len()));
            for host in &bulk.hosts {
                self.peer(host.agent()).bulk_bytes -= piece.len();
            }
            let me = Address { proc: self.config.me, port: PortId::NONE };
            let mut head = Head::new(Kind::Piece, Address::default(), me);
            head.rank = bulk.id;
            self.send_short_to_hosts(&bulk.hosts, head, &piece, FANOUT);
            if !bulk.rest.is_empty() {
                self.bulks.sending.push_back(bulk);
            }
        }
    }

    fn is_window_full(&self, host: HostId) -> bool {
        let peer = self.peers.get(&host.agent());
        peer.is_some_and(|peer| peer.session.unacked_bytes() >= WINDOW)
    }

    /// Separates hosts that do not make progress, so that the others need not wait for them.
    fn split_off(&mut self, bulk: &mut Bulk) {
        if bulk.hosts.len() < 2 {
            return;
        }
        let is_slow = |host: &mut HostId| {
            let proc = host.agent();
            let is_stuck = self.link_to(proc).is_none() || self.is_sent_directly(*host);
            is_stuck && self.is_window_full(*host)
        };
        let slow: Vec<HostId> = bulk.hosts.extract_if(.., is_slow).collect();
        for host in slow {
            let rest = bulk.rest.clone();
            self.bulks.sending.push_back(Bulk { id: bulk.id, hosts: vec![host], rest });
        }
    }

    /// Handles a frame of the session with another host, in sequence.
    pub(super) fn handle_in_order(&mut self, from: ProcId, frame: Frame) {
        if frame.head.kind == Kind::Piece {
            return self.receive_piece(from, frame);
        }
        if self.bulks.queues.is_empty() {
            return self.dispatch(frame);
        }
        let order_key = self.order_key_of(from, &frame.head, &frame.tail);
        match self.bulks.queues.get_mut(&(from, order_key)) {
            Some(queue) => queue.push_back(QueuedFrame::Complete(frame)),
            None => self.dispatch(frame),
        }
    }

    fn order_key_of(&self, from: ProcId, head: &Head, tail: &[u8]) -> OrderKey {
        let sender = head.from.proc;
        match head.kind {
            Kind::Cast => (sender, CastHeader::port_of(tail).unwrap_or_default()),
            // The replies that a process sent before it died precede its death.
            Kind::Died => {
                let queues = self.bulks.queues.keys();
                let its =
                    queues.filter(|(agent, order_key)| *agent == from && order_key.0 == sender);
                its.map(|(_, order_key)| *order_key).min().unwrap_or((sender, head.to.port))
            }
            _ => (sender, head.to.port),
        }
    }

    fn receive_piece(&mut self, from: ProcId, frame: Frame) {
        let key = (from, frame.head.rank);
        if frame.head.flags & FIRST != 0 {
            return self.begin_assembly(key, &frame);
        }
        let Some(assembly) = self.bulks.assemblies.get_mut(&key) else { return };
        if assembly.received_len() + frame.tail.len() > assembly.len {
            // The peer violates the length that it has announced.
            return;
        }
        if self.bulks.is_direct_receive_enabled && assembly.tail.len() == assembly.start_len {
            assembly.direct_parts = DirectParts::of(assembly, &frame.tail, self.config.me);
        }
        if assembly.direct_parts.is_some() {
            return self.write_direct(key, &frame.tail);
        }
        if assembly.tail.capacity() < assembly.len {
            // Allocate only when the peer really sends: pages that are not written cost nothing.
            assembly.tail.reserve(assembly.len - assembly.tail.len());
        }
        assembly.tail.extend_from_slice(&frame.tail);
        if assembly.tail.len() == assembly.len {
            self.assembled(key);
        }
    }

    fn begin_assembly(&mut self, key: (ProcId, u32), frame: &Frame) {
        let Some(head) = frame.tail.first_chunk::<HEAD_LEN>() else { return };
        let Ok((mut head, len)) = Head::decode(head) else { return };
        let start = &frame.tail[HEAD_LEN..];
        let open = self.bulks.assemblies.keys().filter(|(from, _)| *from == key.0).count();
        if len > TAIL_LEN_MAX || start.len() >= len || open >= ASSEMBLIES_MAX {
            return;
        }
        if head.kind == Kind::Cast {
            head.to = Address { proc: self.config.me, port: PortId::NONE };
        }
        (head.seq, head.ack) = (0, 0);
        let order_key = self.order_key_of(key.0, &head, start);
        let (tail, start_len) = (BytesMut::from(start), start.len());
        let assembly = Assembly { head, tail, start_len, len, direct_parts: None, order_key };
        self.bulks.assemblies.insert(key, assembly);
        self.bulks
            .queues
            .entry((key.0, order_key))
            .or_default()
            .push_back(QueuedFrame::Incomplete(key.1));
    }

    /// Completes a long frame and dispatches it together with the frames that waited for it.
    pub(super) fn assembled(&mut self, id: BulkId) {
        let Some(whole) = self.bulks.assemblies.remove(&id) else { return };
        let order_key = (id.0, whole.order_key);
        let frame = Frame { head: whole.head, tail: whole.tail.freeze() };
        let Some(queue) = self.bulks.queues.get_mut(&order_key) else { return };
        let is_it =
            |one: &QueuedFrame| matches!(one, QueuedFrame::Incomplete(other) if *other == id.1);
        if let Some(place) = queue.iter().position(is_it) {
            queue[place] = QueuedFrame::Complete(frame);
        }
        let mut ready = Vec::new();
        while let Some(QueuedFrame::Complete(_)) = queue.front() {
            if let Some(QueuedFrame::Complete(frame)) = queue.pop_front() {
                ready.push(frame);
            }
        }
        if queue.is_empty() {
            self.bulks.queues.remove(&order_key);
        }
        for frame in ready {
            self.dispatch(frame);
        }
    }
}

impl Assembly {
    /// Returns the number of bytes of the tail that have arrived.
    fn received_len(&self) -> usize {
        self.tail.len() + self.direct_parts.as_ref().map_or(0, DirectParts::received_len)
    }
}
