//! Links to other processes: how they come up, and what is sent again after a break.
//!
//! A process talks to a peer over one session; links come and go under it. Whoever needs a link
//! first dials; when both dial at once the link of the lower process id stays. The agent of a host
//! (slot 0) never dials the processes of its host: they report to it when they start.

use super::bulk::PIECE_LEN;
use super::relay::Relayed;
use super::{Effect, Node};
use crate::events::EventKind;
use crate::fault;
use crate::hash::{FastMap, FastSet};
use crate::mailbox::Closed;
use crate::session::{Acceptance, Session};
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};
use std::time::Duration;

/// The first pause before a link is dialled again; it doubles up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(2);
/// The longest pause between two attempts.
const REDIAL_MAX: Duration = Duration::from_millis(200);

/// A link of one process, numbered by it and never again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// One connection, from the first byte to the last.
#[derive(Debug)]
pub(super) struct Link {
    /// Known from the start by the dialler, from the hello by the other side.
    pub(super) peer: Option<ProcId>,
    pub(super) is_dialled: bool,
    /// Whether it ends on this host, and so carries processes of this host only.
    pub(super) is_local: bool,
}

/// Where a peer stands.
#[derive(Debug, Default)]
pub(super) enum Reach {
    /// No link, and none asked for.
    #[default]
    Idle,
    /// A link was asked for or is shaking hands; frames wait in the session.
    Dialling { link: Option<LinkId>, pause: Duration },
    /// Frames flow.
    Up(LinkId),
    /// Its host says that it is dead; the obituary says how.
    Dead,
}

/// One other process, or this one.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) reach: Reach,
    pub(super) session: Session,
    /// Which incarnation the session is with; unknown until the first handshake or the agent's
    /// word.
    pub(super) incarnation: Option<u32>,
    /// Whether this incarnation has ever had a link to this process.
    pub(super) was_up: bool,
    /// Incarnations below this one are dead.
    pub(super) living_from: u32,
    /// Messages sent to each port there and not known to have left its mailbox.
    pub(super) outstanding: FastMap<PortId, u32>,
    /// Who wants to hear of its death. Kept by the agent of its host.
    pub(super) watchers: Vec<Address>,
    /// What its host said of the last incarnation that died.
    pub(super) obituary: Option<Box<Bytes>>,
    /// Its host was asked to tell of its death.
    pub(super) is_watched: bool,
    /// An ack was asked for, to make room.
    is_ack_asked: bool,
    /// Bytes of long frames that have not been sent yet.
    pub(super) bulk_bytes: usize,
    /// Of a host that gets frames by way of others.
    pub(super) relayed: Option<Box<Relayed>>,
    /// Our segments whose descriptor this peer has been sent.
    pub(super) announced: FastSet<u32>,
}

impl Peer {
    pub(super) fn outstanding(&self, port: PortId) -> u32 {
        self.outstanding.get(&port).copied().unwrap_or(0)
    }

    pub(super) fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    pub(super) fn unacked_bytes(&self) -> usize {
        self.session.unacked_bytes() + self.bulk_bytes
    }

    /// What was said of the last incarnation that died.
    pub(super) fn obituary(&self) -> Bytes {
        self.obituary.as_deref().cloned().unwrap_or_default()
    }

    /// Its host is a new one, on which nothing below an incarnation lives.
    pub(super) fn revive(&mut self, living_from: u32) {
        self.living_from = self.living_from.max(living_from);
        if matches!(self.reach, Reach::Dead) {
            self.reach = Reach::Idle;
        }
    }

    pub(super) fn trim(&mut self) {
        self.session.trim();
        self.outstanding.shrink_to_fit();
        self.watchers.shrink_to_fit();
    }

    /// How it fares with frames that take other ways.
    pub(super) fn relayed(&mut self) -> &mut Relayed {
        self.relayed.get_or_insert_default()
    }

    pub(super) fn debit(&mut self, port: PortId) {
        *self.outstanding.entry(port).or_default() += 1;
    }

    /// Returns whether there was something to give back.
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

    /// Whether frames wait for a link that is being made.
    pub fn holds_frames(&self) -> bool {
        self.peers
            .values()
            .any(|peer| matches!(peer.reach, Reach::Dialling { .. }) && peer.unacked_bytes() > 0)
            || self.bulks.is_sending()
    }

    /// The link on which frames flow to and from another process, if there is one.
    pub fn link_to(&self, proc: ProcId) -> Option<LinkId> {
        match self.peers.get(&proc)?.reach {
            Reach::Up(link) => Some(link),
            Reach::Idle | Reach::Dialling { .. } | Reach::Dead => None,
        }
    }

    /// Whether the current incarnation of a process has, or once had, a link to this process.
    pub fn was_up(&self, proc: ProcId) -> bool {
        self.peers.get(&proc).is_some_and(|peer| peer.was_up)
    }

    /// Whether this process looks after the host that `proc` is on.
    pub(super) fn is_agent_of(&self, proc: ProcId) -> bool {
        self.config.me.slot == 0 && self.config.me.host == proc.host
    }

    /// Hands a frame to the session of its receiver, and to a link if there is one.
    pub(super) fn transmit(&mut self, frame: Frame) {
        let Some(frame) = self.refuse_dead(frame) else { return };
        let to = self.next_hop(frame.head.to.proc);
        if to.host != self.config.me.host {
            if frame.head.kind == Kind::Watch && self.watches_from_here(&frame.head) {
                return;
            }
            if frame.tail.len() > PIECE_LEN && frame.head.kind != Kind::Piece {
                return self.spread(&[to.host], frame.head, Bytes::new(), frame.tail);
            }
        }
        let waits_for_report = self.is_agent_of(to);
        let peer = self.peers.entry(to).or_default();
        if waits_for_report && matches!(peer.reach, Reach::Dead) {
            let closed = Closed { code: fault::PROC_DIED, detail: peer.obituary() };
            return self.refuse(&frame, &closed);
        }
        if waits_for_report && peer.incarnation.is_none() && matches!(peer.reach, Reach::Idle) {
            // Nothing was ever started there: it is a handle of an earlier job, or the process went
            // down with the machine that was here before and is not replaced yet.
            let code = if self.is_of_former(to) { fault::HOST_DIED } else { fault::STOPPED };
            return self.refuse(&frame, &Closed { code, detail: Bytes::new() });
        }
        let frame = peer.session.stamp(frame);
        match peer.reach {
            Reach::Up(link) => self.effects.push_back(Effect::Transmit { link, frame }),
            Reach::Dialling { .. } => {}
            Reach::Idle | Reach::Dead if waits_for_report => {}
            Reach::Idle | Reach::Dead => {
                // A process that was replaced answers at the same place: try before refusing.
                peer.reach = Reach::Dialling { link: None, pause: REDIAL_MIN };
                self.effects.push_back(Effect::Connect { peer: to, after: Duration::ZERO });
            }
        }
    }

    /// The process that a frame goes to next: straight to a neighbour on this host, over the agents
    /// of both hosts otherwise. A pair of processes always uses one way, which keeps the order.
    pub(super) fn next_hop(&self, to: ProcId) -> ProcId {
        let me = self.config.me;
        if me.host == to.host {
            return to;
        }
        let agent_host = if me.slot == 0 { to.host } else { me.host };
        agent_host.agent()
    }

    /// Asks the next process on the way to `proc` what it has received, because senders are held
    /// back until it says so.
    pub(super) fn ask_ack(&mut self, proc: ProcId) {
        let to = self.next_hop(proc);
        let Some(peer) = self.peers.get_mut(&to) else { return };
        if !matches!(peer.reach, Reach::Up(_)) || std::mem::replace(&mut peer.is_ack_asked, true) {
            return;
        }
        self.ask_for_life(to);
    }

    /// Asks a peer for an ack, if there is a link to it.
    pub(super) fn ask_for_life(&mut self, to: ProcId) {
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let Some(peer) = self.peers.get_mut(&to) else { return };
        let Reach::Up(link) = peer.reach else { return };
        let ping = Head::new(Kind::Ping, Address { proc: to, port: PortId::NONE }, from);
        let frame = peer.session.stamp(Frame::bare(ping));
        self.effects.push_back(Effect::Transmit { link, frame });
    }

    /// Opens a link now, without anything to send: the way a process reports to its agent.
    pub fn dial(&mut self, peer: ProcId) {
        let reach = &mut self.peer(peer).reach;
        if matches!(reach, Reach::Idle) {
            *reach = Reach::Dialling { link: None, pause: REDIAL_MIN };
            self.effects.push_back(Effect::Connect { peer, after: Duration::ZERO });
        }
    }

    /// A link that this process asked for is open. Greets the peer.
    pub fn connected(&mut self, peer: ProcId) -> LinkId {
        let is_local = peer.host == self.config.me.host;
        let link = self.add_link(Link { peer: Some(peer), is_dialled: true, is_local });
        match &mut self.peer(peer).reach {
            Reach::Dialling { link: slot @ None, .. } => {
                *slot = Some(link);
                self.greet(link, peer, Kind::Hello);
            }
            // The peer's own link won meanwhile.
            _ => self.close(link),
        }
        link
    }

    /// A link was opened by a process of this host that has not said yet who it is.
    pub fn accepted(&mut self) -> LinkId {
        self.add_link(Link { peer: None, is_dialled: false, is_local: true })
    }

    /// As [`Node::accepted`], by another host, whose agent alone may speak for it.
    pub fn accepted_from_afar(&mut self) -> LinkId {
        self.add_link(Link { peer: None, is_dialled: false, is_local: false })
    }

    /// The process at the other end of a link, once it has said who it is.
    pub fn peer_of(&self, link: LinkId) -> Option<ProcId> {
        self.links.get(&link).and_then(|link| link.peer)
    }

    /// A link that this process asked for could not be opened.
    pub fn connect_failed(&mut self, proc: ProcId) {
        let peer = self.peers.entry(proc).or_default();
        let Reach::Dialling { link: None, pause } = &mut peer.reach else { return };
        let after = *pause;
        *pause = (*pause * 2).min(REDIAL_MAX);
        self.effects.push_back(Effect::Connect { peer: proc, after });
        self.watch(proc);
    }

    /// A link is gone, by whatever cause.
    pub fn link_down(&mut self, id: LinkId) {
        if let Some(Link { peer: Some(proc), .. }) = self.links.remove(&id) {
            self.lost(id, proc);
        }
    }

    pub(super) fn lost(&mut self, id: LinkId, proc: ProcId) {
        self.record_peer(EventKind::LinkDown, proc);
        let waits_for_report = self.is_agent_of(proc);
        if proc.host != self.config.me.host {
            self.send_relayed_again();
        }
        let peer = self.peers.entry(proc).or_default();
        let is_current = match peer.reach {
            Reach::Up(current) => current == id,
            Reach::Dialling { link, .. } => link == Some(id),
            Reach::Idle | Reach::Dead => false,
        };
        if !is_current {
            return;
        }
        if waits_for_report {
            peer.reach = Reach::Idle;
        } else {
            peer.reach = Reach::Dialling { link: None, pause: REDIAL_MIN };
            self.effects.push_back(Effect::Connect { peer: proc, after: REDIAL_MIN });
            self.watch(proc);
        }
    }

    /// Handles one frame of a link. A link that breaks the protocol is closed.
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
            (Kind::Bag, Some(peer)) if peer.host != self.config.me.host => {
                self.receive_bag(&frame);
            }
            (_, Some(peer)) if self.link_to(peer) == Some(id) => self.take_in(peer, frame),
            _ => {}
        }
    }

    /// Takes in a frame of the session with a peer, whatever way it has come.
    pub(super) fn take_in(&mut self, proc: ProcId, frame: Frame) {
        let mut next = Some(frame);
        while let Some(frame) = next {
            self.take_in_one(proc, frame);
            next = self.peers.get_mut(&proc).and_then(|peer| peer.session.next_held());
        }
    }

    fn take_in_one(&mut self, proc: ProcId, frame: Frame) {
        let is_afar = proc.host != self.config.me.host;
        let Some(peer) = self.peers.get_mut(&proc) else { return };
        let link = match peer.reach {
            Reach::Up(link) => Some(link),
            Reach::Idle | Reach::Dialling { .. } | Reach::Dead => None,
        };
        let backlog_before = peer.unacked_bytes();
        let acceptance = peer.session.accept(&frame.head, frame.tail.len());
        let max = self.config.backlog_bytes_max;
        let backlog = peer.unacked_bytes();
        let mut must_ask = false;
        if backlog < backlog_before {
            let was_asked = std::mem::take(&mut peer.is_ack_asked);
            // When enough was sent meanwhile, those who are held back still are: ask again.
            must_ask = was_asked && backlog > max;
            if backlog_before > max && backlog <= max {
                self.effects.push_back(Effect::Credited);
            }
        }
        let is_ping = frame.head.kind == Kind::Ping;
        let new = match acceptance {
            Acceptance::New => Some(frame),
            Acceptance::Duplicate => None,
            Acceptance::Gap if is_afar => {
                peer.session.hold(frame);
                None
            }
            Acceptance::Gap => {
                if let Some(link) = link {
                    self.close(link);
                    self.lost(link, proc);
                }
                return;
            }
        };
        if let Some(link) = link
            && new.is_some()
            && (peer.session.owes_ack() || is_ping)
        {
            let to = Address { proc, port: PortId::NONE };
            let ack =
                Head::new(Kind::Ack, to, Address { proc: self.config.me, port: PortId::NONE });
            let frame = peer.session.stamp(Frame::bare(ack));
            self.effects.push_back(Effect::Transmit { link, frame });
        }
        if must_ask {
            self.ask_ack(proc);
        }
        if backlog < backlog_before && self.bulks.is_sending() {
            self.send_pieces();
        }
        if let Some(frame) = new
            && frame.head.kind.is_sequenced()
        {
            if frame.head.to.proc == self.config.me {
                // Before a release that the sender has sent behind it.
                self.hold_own(&frame);
            }
            if is_afar { self.arrive(proc, frame) } else { self.dispatch(frame) }
        }
    }

    /// Sends what the peer does not have over the new link.
    pub(super) fn link_up(&mut self, id: LinkId, proc: ProcId, peer_received: u64) {
        self.record_peer(EventKind::LinkUp, proc);
        self.answers_itself(proc.host, true);
        let peer = self.peers.entry(proc).or_default();
        peer.reach = Reach::Up(id);
        peer.was_up = true;
        peer.is_watched = false;
        peer.is_ack_asked = false;
        let backlog_before = peer.unacked_bytes();
        for frame in peer.session.resume(peer_received) {
            self.effects.push_back(Effect::Transmit { link: id, frame });
        }
        for frame in self.waiting_relays(proc) {
            self.effects.push_back(Effect::Transmit { link: id, frame });
        }
        if self.bulks.is_sending() {
            self.send_pieces();
        }
        if backlog_before > self.config.backlog_bytes_max {
            // Whoever is held back tries again, and asks for an ack if there is no room yet.
            self.effects.push_back(Effect::Credited);
        }
    }

    /// Notes which incarnation of a peer is at the other end.
    pub(super) fn met(&mut self, proc: ProcId, incarnation: u32) {
        let peer = self.peers.entry(proc).or_default();
        if peer.incarnation.is_some_and(|known| known != incarnation) {
            // Its host has not told yet how the one before ended.
            self.bury(proc, incarnation, fault::PROC_DIED, Bytes::new());
        }
        self.peer(proc).incarnation = Some(incarnation);
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
