//! Connections to other processes: how they open, and which frames are retransmitted after a break.
//!
//! A process communicates with a peer over one session, which may use several connections in
//! sequence. The first process that needs a connection opens it. If both sides connect at the same
//! time, the connection of the lower process id stays. The agent of a host (slot 0) never connects
//! to the processes of its host: they connect to it when they start.

use super::bulk::PIECE_LEN;
use super::relay::Relayed;
use super::{Effect, Node};
use crate::cast::CastHeader;
use crate::events::EventKind;
use crate::fault;
use crate::hash::{FastMap, FastSet};
use crate::mailbox::Closed;
use crate::session::{Acceptance, Session};
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};
use std::time::Duration;

/// The first pause before a connection attempt is repeated; it doubles up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(2);
/// The longest pause between two attempts.
const REDIAL_MAX: Duration = Duration::from_millis(200);

/// A connection of one process. The process numbers its connections and never reuses a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// One connection, from the first byte to the last.
#[derive(Debug)]
pub(super) struct Link {
    /// Known from the start on the side that connects, and from the hello on the other side.
    pub(super) peer: Option<ProcId>,
    pub(super) is_dialled: bool,
    /// Whether the connection stays on this host, and so carries processes of this host only.
    pub(super) is_local: bool,
}

/// How a peer can be reached.
#[derive(Debug, Default)]
pub(super) enum LinkState {
    /// No connection, and none was requested.
    #[default]
    Idle,
    /// A connection was requested or is in its handshake; frames wait in the session.
    Dialling { link: Option<LinkId>, pause: Duration },
    /// Frames are exchanged.
    Up(LinkId),
    /// The host of the peer has reported it dead; the exit report contains the cause.
    Dead,
}

/// Another process, or this one.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) link_state: LinkState,
    pub(super) session: Session,
    /// The incarnation that the session is with.
    ///
    /// It is unknown until the first handshake or a report of the agent.
    pub(super) incarnation: Option<u32>,
    /// Whether this incarnation has ever had a link to this process.
    pub(super) was_up: bool,
    /// Incarnations below this one are dead.
    pub(super) living_from: u32,
    /// Number of messages sent to each port there and not known to have left its mailbox.
    pub(super) outstanding: FastMap<PortId, u32>,
    /// Addresses that are notified of its death. Stored by the agent of its host.
    pub(super) watchers: Vec<Address>,
    /// The exit report of the last incarnation that died.
    pub(super) exit_report: Option<Box<Bytes>>,
    /// Its host was requested to report its death.
    pub(super) is_watched: bool,
    /// An ack was requested, to free capacity.
    is_ack_requested: bool,
    /// Bytes of long frames that have not been sent yet.
    pub(super) bulk_bytes: usize,
    /// The forwarding state of a host that receives frames through other hosts.
    pub(super) relayed: Option<Box<Relayed>>,
    /// Our segments whose descriptor was sent to this peer.
    pub(super) announced: FastSet<u32>,
}

impl Peer {
    pub(super) fn outstanding(&self, port: PortId) -> u32 {
        self.outstanding.get(&port).copied().unwrap_or(0)
    }

    pub(super) fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Whether anything was sent that the peer is not known to have received.
    pub(super) fn has_unacked(&self) -> bool {
        self.bulk_bytes > 0 || self.session.has_unacked()
    }

    pub(super) fn unacked_bytes(&self) -> usize {
        self.session.unacked_bytes() + self.bulk_bytes
    }

    /// Returns the exit report of the last incarnation that died.
    pub(super) fn exit_report(&self) -> Bytes {
        self.exit_report.as_deref().cloned().unwrap_or_default()
    }

    /// Notes that its host was replaced; no incarnation below `living_from` lives there.
    pub(super) fn host_replaced(&mut self, living_from: u32) {
        self.living_from = self.living_from.max(living_from);
        if matches!(self.link_state, LinkState::Dead) {
            self.link_state = LinkState::Idle;
        }
    }

    pub(super) fn trim(&mut self) {
        self.session.trim();
        self.outstanding.shrink_to_fit();
        self.watchers.shrink_to_fit();
    }

    /// Returns the state of the frames that reach this peer through other hosts.
    pub(super) fn relayed(&mut self) -> &mut Relayed {
        self.relayed.get_or_insert_default()
    }

    pub(super) fn debit(&mut self, port: PortId) {
        *self.outstanding.entry(port).or_default() += 1;
    }

    /// Returns whether any credit was outstanding.
    pub(super) fn credit(&mut self, port: PortId, count: u32) -> bool {
        let Some(outstanding) = self.outstanding.get_mut(&port) else { return false };
        *outstanding = outstanding.saturating_sub(count);
        if *outstanding == 0 {
            self.outstanding.remove(&port);
        }
        true
    }
}

impl Node {
    pub(super) fn peer(&mut self, proc: ProcId) -> &mut Peer {
        self.peers.entry(proc).or_default()
    }

    /// Whether frames wait for a connection that is being established.
    pub fn has_pending_frames(&self) -> bool {
        self.peers.values().any(|peer| {
            matches!(peer.link_state, LinkState::Dialling { .. }) && peer.unacked_bytes() > 0
        }) || self.bulks.is_sending()
    }

    /// Returns the established connection to another process, if one exists.
    pub fn link_to(&self, proc: ProcId) -> Option<LinkId> {
        match self.peers.get(&proc)?.link_state {
            LinkState::Up(link) => Some(link),
            LinkState::Idle | LinkState::Dialling { .. } | LinkState::Dead => None,
        }
    }

    /// Whether the current incarnation of a process has, or once had, a link to this process.
    pub fn was_up(&self, proc: ProcId) -> bool {
        self.peers.get(&proc).is_some_and(|peer| peer.was_up)
    }

    /// Whether this process is the agent of the host that `proc` is on.
    pub(super) fn is_agent_of(&self, proc: ProcId) -> bool {
        self.config.me.slot == 0 && self.config.me.host == proc.host
    }

    /// Queues a frame in the session of its receiver, and sends it if a connection exists.
    pub(super) fn transmit(&mut self, frame: Frame) {
        let Some(frame) = self.refuse_dead(frame) else { return };
        let to = self.next_hop(frame.head.to.proc);
        if to.host != self.config.me.host {
            if frame.head.kind == Kind::Watch && self.register_remote_watch(&frame.head) {
                return;
            }
            let Some(frame) = self.hold(frame) else { return };
            return self.transmit_to_host(to, frame);
        }
        self.transmit_to(to, frame);
    }

    /// Sends a frame to another host, in pieces if it is long.
    fn transmit_to_host(&mut self, to: ProcId, frame: Frame) {
        if frame.tail.len() > PIECE_LEN && frame.head.kind != Kind::Piece {
            let (start, rest) = split_long(&frame);
            return self.send_to_hosts(&[to.host], frame.head, start, rest);
        }
        self.transmit_to(to, frame);
    }

    fn transmit_to(&mut self, to: ProcId, frame: Frame) {
        let waits_for_report = self.is_agent_of(to);
        let peer = self.peers.entry(to).or_default();
        if waits_for_report && matches!(peer.link_state, LinkState::Dead) {
            let closed = Closed { code: fault::PROC_DIED, detail: peer.exit_report() };
            return self.refuse(&frame, &closed);
        }
        if waits_for_report
            && peer.incarnation.is_none()
            && matches!(peer.link_state, LinkState::Idle)
        {
            // No process was ever started in this slot: the handle is from an earlier job, or the
            // process was on the machine that this one replaced and was not restored yet.
            let code =
                if self.is_from_former_epoch(to) { fault::HOST_DIED } else { fault::STOPPED };
            return self.refuse(&frame, &Closed { code, detail: Bytes::new() });
        }
        let frame = peer.session.stamp(frame);
        match peer.link_state {
            LinkState::Up(link) => self.effects.push_back(Effect::Transmit { link, frame }),
            LinkState::Dialling { .. } => {}
            LinkState::Idle | LinkState::Dead if waits_for_report => {}
            LinkState::Idle | LinkState::Dead => {
                // A replaced process responds at the same address: try to connect before refusing.
                peer.link_state = LinkState::Dialling { link: None, pause: REDIAL_MIN };
                self.effects.push_back(Effect::Connect { peer: to, after: Duration::ZERO });
            }
        }
    }

    /// Returns the next process on the route of a frame.
    ///
    /// Frames go directly to a process of the same host, and through the agents of both hosts
    /// otherwise. A pair of processes always uses one route, which preserves the order.
    pub(super) fn next_hop(&self, to: ProcId) -> ProcId {
        let me = self.config.me;
        if me.host == to.host {
            return to;
        }
        let agent_host = if me.slot == 0 { to.host } else { me.host };
        agent_host.agent()
    }

    /// Requests an ack from the next process on the route to `proc`.
    ///
    /// Senders are blocked until it arrives.
    pub(super) fn request_ack(&mut self, proc: ProcId) {
        let to = self.next_hop(proc);
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if !matches!(peer.link_state, LinkState::Up(_))
            || std::mem::replace(&mut peer.is_ack_requested, true)
        {
            return;
        }
        self.send_ping(to);
    }

    /// Requests an ack from a peer, if a connection to it exists.
    pub(super) fn send_ping(&mut self, to: ProcId) {
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let LinkState::Up(link) = peer.link_state else { return };
        let ping = Head::new(Kind::Ping, Address { proc: to, port: PortId::NONE }, from);
        let frame = peer.session.stamp(Frame::bare(ping));
        self.effects.push_back(Effect::Transmit { link, frame });
    }

    /// Opens a connection now, without anything to send.
    ///
    /// A process reports to its agent in this way.
    pub fn dial(&mut self, peer: ProcId) {
        let link_state = &mut self.peer(peer).link_state;
        if matches!(link_state, LinkState::Idle) {
            *link_state = LinkState::Dialling { link: None, pause: REDIAL_MIN };
            self.effects.push_back(Effect::Connect { peer, after: Duration::ZERO });
        }
    }

    /// Notes that a requested connection is open, and sends the greeting.
    pub fn connected(&mut self, peer: ProcId) -> LinkId {
        let is_local = peer.host == self.config.me.host;
        let link = self.add_link(Link { peer: Some(peer), is_dialled: true, is_local });
        match &mut self.peer(peer).link_state {
            LinkState::Dialling { link: slot @ None, .. } => {
                *slot = Some(link);
                self.greet(link, peer, Kind::Hello);
            }
            // The connection that the peer opened has been chosen in the meantime.
            _ => self.close(link),
        }
        link
    }

    /// Notes that a process of this host has opened a connection; its identity is not known yet.
    pub fn accepted(&mut self) -> LinkId {
        self.add_link(Link { peer: None, is_dialled: false, is_local: true })
    }

    /// Like [`Node::accepted`], for another host.
    ///
    /// Only the agent of that host may use the connection.
    pub fn accepted_remote(&mut self) -> LinkId {
        self.add_link(Link { peer: None, is_dialled: false, is_local: false })
    }

    /// Returns the process at the other end of a connection, once its greeting has arrived.
    pub fn peer_of(&self, link: LinkId) -> Option<ProcId> {
        self.links.get(&link).and_then(|link| link.peer)
    }

    /// Notes that a requested connection could not be opened.
    pub fn connect_failed(&mut self, proc: ProcId) {
        let peer = self.peers.entry(proc).or_default();
        let LinkState::Dialling { link: None, pause } = &mut peer.link_state else { return };
        let after = *pause;
        *pause = (*pause * 2).min(REDIAL_MAX);
        self.effects.push_back(Effect::Connect { peer: proc, after });
        self.watch(proc);
    }

    /// Notes that a connection has ended, for any reason.
    pub fn link_down(&mut self, id: LinkId) {
        if let Some(Link { peer: Some(proc), .. }) = self.links.remove(&id) {
            self.connection_lost(id, proc);
        }
    }

    pub(super) fn connection_lost(&mut self, id: LinkId, proc: ProcId) {
        self.record_peer(EventKind::LinkDown, proc);
        let waits_for_report = self.is_agent_of(proc);
        if proc.host != self.config.me.host {
            self.retransmit_relayed();
        }
        let peer = self.peers.entry(proc).or_default();
        let is_current = match peer.link_state {
            LinkState::Up(current) => current == id,
            LinkState::Dialling { link, .. } => link == Some(id),
            LinkState::Idle | LinkState::Dead => false,
        };
        if !is_current {
            return;
        }
        if waits_for_report {
            peer.link_state = LinkState::Idle;
        } else {
            peer.link_state = LinkState::Dialling { link: None, pause: REDIAL_MIN };
            self.effects.push_back(Effect::Connect { peer: proc, after: REDIAL_MIN });
            self.watch(proc);
        }
    }

    /// Handles one frame of a connection. A connection that breaks the protocol is closed.
    pub fn receive(&mut self, id: LinkId, frame: Frame) {
        let Some(link) = self.links.get(&id) else { return };
        match (frame.head.kind, link.peer) {
            (Kind::Hello, None) => self.receive_hello(id, &frame),
            (Kind::Welcome, Some(peer)) if link.is_dialled => {
                self.receive_welcome(id, peer, &frame);
            }
            (Kind::Hello | Kind::Welcome, _) | (_, None) => self.close(id),
            (Kind::Relay, Some(peer)) if peer.host != self.config.me.host => {
                self.receive_relay(frame);
            }
            (Kind::Batch, Some(peer)) if peer.host != self.config.me.host => {
                self.receive_batch(&frame);
            }
            (_, Some(peer)) if self.link_to(peer) == Some(id) => self.accept_frame(peer, frame),
            _ => {}
        }
    }

    /// Accepts a frame of the session with a peer, whichever route it has taken.
    pub(super) fn accept_frame(&mut self, proc: ProcId, frame: Frame) {
        let mut next = Some(frame);
        while let Some(frame) = next {
            self.accept_next_frame(proc, frame);
            next = self.peers.get_mut(&proc).and_then(|peer| peer.session.next_buffered());
        }
    }

    fn accept_next_frame(&mut self, proc: ProcId, frame: Frame) {
        let is_remote = proc.host != self.config.me.host;
        let Some(peer) = self.peers.get_mut(&proc) else { return };
        let link = match peer.link_state {
            LinkState::Up(link) => Some(link),
            LinkState::Idle | LinkState::Dialling { .. } | LinkState::Dead => None,
        };
        let backlog_before = peer.unacked_bytes();
        let acceptance = peer.session.accept(&frame.head, frame.tail.len());
        let max = self.config.backlog_bytes_max;
        let backlog = peer.unacked_bytes();
        let mut must_request = false;
        if backlog < backlog_before {
            let was_requested = std::mem::take(&mut peer.is_ack_requested);
            // If enough was sent in the meantime, senders are still blocked: request another ack.
            must_request = was_requested && backlog > max;
            if backlog_before > max && backlog <= max {
                self.effects.push_back(Effect::Credited);
                self.postponed.note_capacity_anywhere();
            }
        }
        let is_ping = frame.head.kind == Kind::Ping;
        let new = match acceptance {
            Acceptance::New => Some(frame),
            Acceptance::Duplicate => None,
            Acceptance::Gap if is_remote => {
                peer.session.buffer(frame);
                None
            }
            Acceptance::Gap => {
                if let Some(link) = link {
                    self.close(link);
                    self.connection_lost(link, proc);
                }
                return;
            }
        };
        if let Some(link) = link
            && new.is_some()
            && (peer.session.is_ack_due() || is_ping)
        {
            let to = Address { proc, port: PortId::NONE };
            let ack =
                Head::new(Kind::Ack, to, Address { proc: self.config.me, port: PortId::NONE });
            let frame = peer.session.stamp(Frame::bare(ack));
            self.effects.push_back(Effect::Transmit { link, frame });
        }
        if must_request {
            self.request_ack(proc);
        }
        if backlog < backlog_before && self.bulks.is_sending() {
            self.send_pieces();
        }
        if let Some(frame) = new
            && frame.head.kind.is_sequenced()
        {
            if frame.head.to.proc == self.config.me {
                // This precedes a release that the sender has sent after the frame.
                self.acquire_own_segments(&frame);
            }
            if is_remote { self.handle_in_order(proc, frame) } else { self.dispatch(frame) }
        }
    }

    /// Sends the frames that the peer does not have over the new connection.
    pub(super) fn link_up(&mut self, id: LinkId, proc: ProcId, peer_received: u64) {
        self.record_peer(EventKind::LinkUp, proc);
        self.note_responder(proc.host, true);
        let peer = self.peers.entry(proc).or_default();
        peer.link_state = LinkState::Up(id);
        peer.was_up = true;
        peer.is_watched = false;
        peer.is_ack_requested = false;
        let backlog_before = peer.unacked_bytes();
        for frame in peer.session.resume(peer_received) {
            self.effects.push_back(Effect::Transmit { link: id, frame });
        }
        for frame in self.take_waiting_relays(proc) {
            self.effects.push_back(Effect::Transmit { link: id, frame });
        }
        if self.bulks.is_sending() {
            self.send_pieces();
        }
        if backlog_before > self.config.backlog_bytes_max {
            // Blocked senders try again, and request an ack if there is still no capacity.
            self.note_capacity_anywhere();
        }
        self.watch_connected(proc);
    }

    /// Notes which incarnation of a peer is at the other end.
    pub(super) fn note_incarnation(&mut self, proc: ProcId, incarnation: u32) {
        let peer = self.peers.entry(proc).or_default();
        if peer.incarnation.is_some_and(|known| known != incarnation) {
            // Its host has not reported yet how the previous incarnation ended.
            self.discard_peer(proc, incarnation, fault::PROC_DIED, Bytes::new());
        }
        self.peer(proc).incarnation = Some(incarnation);
    }

    /// Ends the session with an incarnation of a peer, and closes its connection.
    pub(super) fn end_session(&mut self, proc: ProcId, living_from: u32, next: LinkState) {
        let peer = self.peer(proc);
        peer.session = Session::default();
        (peer.relayed, peer.bulk_bytes) = (None, 0);
        peer.announced.clear();
        (peer.was_up, peer.incarnation, peer.living_from) = (false, None, living_from);
        let link_state = std::mem::replace(&mut peer.link_state, next);
        if let LinkState::Up(link) | LinkState::Dialling { link: Some(link), .. } = link_state {
            if matches!(link_state, LinkState::Up(_)) {
                self.record_peer(EventKind::LinkDown, proc);
            }
            self.close(link);
        }
        let lost = self.bulks.discard_host(proc);
        self.effects.extend(lost.into_iter().map(Effect::Abort));
    }

    fn add_link(&mut self, link: Link) -> LinkId {
        self.next_link += 1;
        let id = LinkId(self.next_link);
        self.links.insert(id, link);
        id
    }

    pub(super) fn close(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.effects.push_back(Effect::Close { link });
    }
}

/// Splits the tail of a frame into the part that precedes the message, and the message.
fn split_long(frame: &Frame) -> (Bytes, Bytes) {
    let cast = (frame.head.kind == Kind::Cast).then(|| CastHeader::decode(&frame.tail)).flatten();
    let message_len = cast.map_or(frame.tail.len(), |(_, message)| message.len());
    let start_len = frame.tail.len() - message_len;
    (frame.tail.slice(..start_len), frame.tail.slice(start_len..))
}
