//! Links to other processes: handshake, replay after a break, deaths.
//!
//! A process talks to a peer over one session; links come and go under it. Whoever needs a link
//! first dials; when both dial at once the link of the lower process id stays. The agent of a host
//! (slot 0) never dials the processes of its host: they report to it when they start.

use super::bulk::PIECE_LEN;
use super::epoch::{FENCE, first_life};
use super::relay::Relayed;
use super::{Effect, Node};
use crate::events::EventKind;
use crate::fault;
use crate::hash::{FastMap, FastSet};
use crate::mailbox::Closed;
use crate::session::{Acceptance, Session};
use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};
use std::time::Duration;

/// The first pause before a link is dialled again; it doubles up to [`REDIAL_MAX`].
const REDIAL_MIN: Duration = Duration::from_millis(2);
/// The longest pause between two attempts.
const REDIAL_MAX: Duration = Duration::from_millis(200);
/// Bytes of the body of a hello or welcome.
const GREETING_LEN: usize = 16 + 32 + 4 + 4 + 8;

/// A link of one process, numbered by it and never again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LinkId(pub u32);

/// One connection, from the first byte to the last.
#[derive(Debug)]
pub(super) struct Link {
    /// Known from the start by the dialler, from the hello by the other side.
    peer: Option<ProcId>,
    is_dialled: bool,
    /// Whether it ends on this host, and so carries processes of this host only.
    is_local: bool,
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
    incarnation: Option<u32>,
    /// Incarnations below this one are dead.
    living_from: u32,
    /// Messages sent to each port there and not known to have left its mailbox.
    outstanding: FastMap<PortId, u32>,
    /// Who wants to hear of its death. Kept by the agent of its host.
    watchers: Vec<Address>,
    /// What its host said of the last incarnation that died.
    obituary: Option<Box<Bytes>>,
    /// Its host was asked to tell of its death.
    pub(super) is_watched: bool,
    /// An ack was asked for, to make room.
    is_ack_asked: bool,
    /// Bytes of long frames that have not been sent yet.
    pub(super) bulk_bytes: usize,
    /// Of a host that gets frames by way of others.
    pub(super) relayed: Option<Box<Relayed>>,
    /// Our segments whose descriptor this peer has been sent.
    announced: FastSet<u32>,
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

    /// Incarnations below this one are dead.
    pub(super) fn living_from(&self) -> u32 {
        self.living_from
    }

    /// What was said of the last incarnation that died.
    fn obituary(&self) -> Bytes {
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

    /// Whether this process looks after the host that `proc` is on.
    fn is_agent_of(&self, proc: ProcId) -> bool {
        self.config.me.slot == 0 && self.config.me.host == proc.host
    }

    fn agent_of(proc: ProcId) -> Address {
        Address { proc: ProcId { host: proc.host, slot: 0 }, port: PortId::NONE }
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
        ProcId { host: agent_host, slot: 0 }
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

    fn lost(&mut self, id: LinkId, proc: ProcId) {
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

    fn receive_hello(&mut self, id: LinkId, frame: &Frame) {
        let proc = frame.head.from.proc;
        let is_local = self.links.get(&id).is_some_and(|link| link.is_local);
        let here = self.config.me.host;
        let may_speak =
            if is_local { proc.host == here } else { proc.host != here && proc.slot == 0 };
        if !may_speak {
            return self.close(id);
        }
        let Some(greeting) = self.check_greeting(frame) else { return self.close(id) };
        if !is_local && self.judge_epoch(id, proc, frame, &greeting) {
            return;
        }
        let is_lower = self.config.me < proc;
        let peer = self.peers.entry(proc).or_default();
        let oldest = peer.incarnation.unwrap_or(peer.living_from);
        let is_stale = greeting.incarnation < oldest;
        if is_stale || (is_lower && matches!(peer.reach, Reach::Dialling { link: Some(_), .. })) {
            // An old process, or both dialled and ours stays.
            return self.close(id);
        }
        let old = match peer.reach {
            Reach::Up(link) => Some(link),
            Reach::Dialling { link, .. } => link,
            Reach::Idle | Reach::Dead => None,
        };
        self.links.insert(id, Link { peer: Some(proc), is_dialled: false, is_local });
        if let Some(old) = old {
            self.close(old);
        }
        self.met(proc, greeting.incarnation);
        self.greet(id, proc, Kind::Welcome);
        self.link_up(id, proc, greeting.received);
    }

    fn receive_welcome(&mut self, id: LinkId, proc: ProcId, frame: &Frame) {
        let Some(greeting) = self.check_greeting(frame) else { return self.close(id) };
        if frame.head.from.proc != proc {
            return self.close(id);
        }
        if proc.host != self.config.me.host && self.judge_epoch(id, proc, frame, &greeting) {
            return self.call_again(id, proc);
        }
        // If it is another incarnation, the session ends here, but not this link.
        self.peer(proc).reach = Reach::Idle;
        self.met(proc, greeting.incarnation);
        self.link_up(id, proc, greeting.received);
    }

    /// Whoever is in the place of a peer now, or will be, is called after a pause.
    fn call_again(&mut self, id: LinkId, proc: ProcId) {
        let Reach::Dialling { link, .. } = &mut self.peer(proc).reach else { return };
        if *link == Some(id) {
            *link = None;
            self.connect_failed(proc);
        }
    }

    /// Whether one of two agents lives in another epoch of its host than the other believes: who
    /// is dead is told so, and the link closes.
    fn judge_epoch(&mut self, id: LinkId, proc: ProcId, frame: &Frame, said: &Greeting) -> bool {
        let epoch = self.pulse.epoch(proc.host);
        let is_dead = self.pulse.obituary(proc.host).is_some();
        let is_stale = said.incarnation < first_life(epoch + u32::from(is_dead));
        if is_stale && proc.host.0 == 0 {
            // A root that is lost has nothing to say any more, also not that we are dead.
            self.turn_away(id, proc);
            return true;
        }
        if said.of > self.config.incarnation && self.config.me.host.0 == 0 {
            // Another root has it, or will: whatever we are, it serves us no more.
            self.close(id);
            self.disowned(proc.host);
            return true;
        }
        if said.of > self.config.incarnation {
            if frame.head.kind == Kind::Hello {
                // So that whoever has told us knows that we know.
                self.greet(id, proc, Kind::Welcome);
            }
            self.close(id);
            self.fenced();
            return true;
        }
        if is_stale {
            self.turn_away(id, proc);
        } else if said.incarnation >= first_life(epoch + 1) || frame.head.flags & FENCE != 0 {
            // We have not heard yet that it has replaced another: it calls again.
            self.close(id);
        } else {
            return false;
        }
        true
    }

    /// Sends what the peer does not have over the new link.
    fn link_up(&mut self, id: LinkId, proc: ProcId, peer_received: u64) {
        self.record_peer(EventKind::LinkUp, proc);
        let peer = self.peers.entry(proc).or_default();
        peer.reach = Reach::Up(id);
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
    fn met(&mut self, proc: ProcId, incarnation: u32) {
        let peer = self.peers.entry(proc).or_default();
        if peer.incarnation.is_some_and(|known| known != incarnation) {
            // Its host has not told yet how the one before ended.
            self.bury(proc, incarnation, fault::PROC_DIED, Bytes::new());
        }
        self.peer(proc).incarnation = Some(incarnation);
    }

    fn greet(&mut self, link: LinkId, to: ProcId, kind: Kind) {
        let peer = self.peer(to);
        let received = peer.session.received();
        // What was received counts for the incarnation it came from, not for the next one.
        let of = peer.incarnation.unwrap_or(peer.living_from);
        let frame = self.greeting(to, kind, of, received);
        self.effects.push_back(Effect::Transmit { link, frame });
    }

    /// Says who this process is to `to`, of whose incarnation `of` so much was received.
    pub(super) fn greeting(&self, to: ProcId, kind: Kind, of: u32, received: u64) -> Frame {
        let mut tail = BytesMut::with_capacity(GREETING_LEN);
        tail.put_slice(&self.config.job.0);
        tail.put_slice(&self.config.token);
        tail.put_u32_le(self.config.incarnation);
        tail.put_u32_le(of);
        tail.put_u64_le(received);
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let head = Head::new(kind, Address { proc: to, port: PortId::NONE }, from);
        Frame { head, tail: tail.freeze() }
    }

    fn check_greeting(&self, frame: &Frame) -> Option<Greeting> {
        let tail: &[u8; GREETING_LEN] = frame.tail.as_ref().try_into().ok()?;
        let (job, rest) = tail.split_first_chunk::<16>()?;
        let (token, rest) = rest.split_first_chunk::<32>()?;
        let (incarnation, rest) = rest.split_first_chunk::<4>()?;
        let (of, received) = rest.split_first_chunk::<4>()?;
        let of = u32::from_le_bytes(*of);
        let is_of_me = of == self.config.incarnation;
        let received = u64::from_le_bytes(received.try_into().ok()?);
        let is_ours = *job == self.config.job.0
            && is_same(token, &self.config.token)
            && frame.head.to.proc == self.config.me;
        is_ours.then_some(Greeting {
            incarnation: u32::from_le_bytes(*incarnation),
            of,
            received: if is_of_me { received } else { 0 },
        })
    }

    /// The host reports the death of one of its processes.
    pub fn proc_died(&mut self, proc: ProcId, incarnation: u32, detail: Bytes) {
        let peer = self.peers.entry(proc).or_default();
        if incarnation < peer.incarnation.unwrap_or(peer.living_from) {
            return;
        }
        let watchers = std::mem::take(&mut peer.watchers);
        self.collect_without(proc);
        self.bury(proc, incarnation.saturating_add(1), fault::PROC_DIED, detail.clone());
        for watcher in watchers {
            self.send_died(watcher, proc, incarnation, (0, &detail));
        }
    }

    /// The host has started a process: frames to it wait until it reports.
    pub fn proc_started(&mut self, proc: ProcId, incarnation: u32) {
        let peer = self.peers.entry(proc).or_default();
        peer.incarnation = Some(incarnation);
        if matches!(peer.reach, Reach::Dead) {
            peer.reach = Reach::Idle;
        }
    }

    /// Ends the session with a dead process: its calls fail, its link closes.
    pub(super) fn bury(&mut self, proc: ProcId, living_from: u32, code: u8, detail: Bytes) {
        let peer = self.peers.entry(proc).or_default();
        peer.session = Session::default();
        (peer.relayed, peer.bulk_bytes) = (None, 0);
        peer.outstanding.clear();
        peer.announced.clear();
        peer.is_watched = false;
        peer.incarnation = None;
        peer.living_from = living_from;
        peer.obituary = Some(Box::new(detail.clone()));
        let reach = std::mem::replace(&mut peer.reach, Reach::Dead);
        if let Reach::Up(link) | Reach::Dialling { link: Some(link), .. } = reach {
            if matches!(reach, Reach::Up(_)) {
                self.record_peer(EventKind::LinkDown, proc);
            }
            self.close(link);
        }
        let lost = self.bulks.bury(proc);
        self.effects.extend(lost.into_iter().map(Effect::Forsake));
        self.fail_calls_to(proc, code, &detail);
        self.effects.push_back(Effect::Credited);
        self.effects.push_back(Effect::Buried(proc));
        self.record_peer(EventKind::Died, proc);
    }

    /// Sends the descriptor of one of our segments, unless the peer has it. `false` when the peer
    /// is not on this host and cannot have it.
    pub fn announce(&mut self, proc: ProcId, segment: u32) -> bool {
        if proc.host != self.config.me.host {
            return false;
        }
        if proc != self.config.me && self.peer(proc).announced.insert(segment) {
            let from = Address { proc: self.config.me, port: PortId::NONE };
            let mut head = Head::new(Kind::Segment, Address { proc, port: PortId::NONE }, from);
            head.rank = segment;
            self.dispatch(Frame::bare(head));
        }
        true
    }

    /// Sends the descriptor of one of our segments to those of this host that do not have it; to
    /// all of them when it is a new one.
    pub fn announce_all(&mut self, segment: u32, is_new: bool, readers: &[ProcId]) {
        if is_new {
            for peer in self.peers.values_mut() {
                peer.announced.remove(&segment);
            }
        }
        for reader in readers {
            self.announce(*reader, segment);
        }
    }

    /// Gives a part of a segment back to the process that owns it.
    pub fn release(&mut self, owner: ProcId, segment: u32, generation: u32) {
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let to = Address { proc: owner, port: PortId::NONE };
        let mut head = Head::new(Kind::Release, to, from);
        head.rank = segment;
        let tail = Bytes::copy_from_slice(&generation.to_le_bytes());
        self.dispatch(Frame { head, tail });
    }

    /// Asks the host of a process to tell of its death; this process hears it through
    /// [`PortId::AGENT`] too.
    pub fn watch(&mut self, proc: ProcId) {
        let is_asked = std::mem::replace(&mut self.peer(proc).is_watched, true);
        if !is_asked {
            self.send_watch(proc, Bytes::new());
        }
    }

    /// As [`Node::watch`], for one incarnation: its death is told too when it is long past and the
    /// slot is taken again.
    pub fn watch_incarnation(&mut self, proc: ProcId, incarnation: u32) {
        self.send_watch(proc, Bytes::copy_from_slice(&incarnation.to_le_bytes()));
    }

    /// Notes who asks another host to be told of the end of one of its processes. Whether that is
    /// all: the end of an agent is the end of its host, and that is told by the hosts that live.
    fn watches_from_here(&mut self, watch: &Head) -> bool {
        let proc = ProcId { host: watch.to.proc.host, slot: watch.rank };
        self.pulse.watches(proc, watch.from);
        proc.slot == 0
    }

    fn send_watch(&mut self, proc: ProcId, incarnation: Bytes) {
        if proc.slot == 0 && (proc.host == self.config.me.host || self.config.me.slot == 0) {
            return;
        }
        let me = Address { proc: self.config.me, port: PortId::AGENT };
        let mut head = Head::new(Kind::Watch, Self::agent_of(proc), me);
        head.rank = proc.slot;
        self.dispatch(Frame { head, tail: incarnation });
    }

    pub(super) fn deliver_watch(&mut self, frame: &Frame) {
        let head = &frame.head;
        let proc = ProcId { host: self.config.me.host, slot: head.rank };
        if proc == self.config.me {
            // Who asks lives on another host, and hears from its own agent when this host dies.
            return;
        }
        let peer = self.peers.entry(proc).or_default();
        // In another life of this host, at least.
        let living_from = peer.living_from.max(self.config.incarnation);
        let last = living_from.saturating_sub(1);
        let meant = frame.tail.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let died = match (&peer.reach, peer.incarnation) {
            (Reach::Dead, _) => Some(peer.obituary()),
            // Nothing was ever started there.
            (_, None) => Some(Bytes::new()),
            // Somebody else lives there already.
            (_, Some(_)) if meant.is_some_and(|meant| meant < living_from) => Some(peer.obituary()),
            (_, Some(_)) => None,
        };
        let is_lost = peer.incarnation.is_none() && self.is_of_former(proc);
        let flags = if is_lost { fault::HOST_DIED } else { 0 };
        let peer = self.peers.entry(proc).or_default();
        match died {
            Some(detail) => self.send_died(head.from, proc, last, (flags, &detail)),
            None if peer.watchers.contains(&head.from) => {}
            None => peer.watchers.push(head.from),
        }
    }

    fn send_died(&mut self, to: Address, proc: ProcId, last: u32, (code, detail): (u8, &Bytes)) {
        let from = Address { proc, port: PortId::NONE };
        let mut head = Head::new(Kind::Died, to, from);
        (head.rank, head.flags) = (last, code);
        self.dispatch(Frame { head, tail: detail.clone() });
    }

    /// The host of a process says that it died: ends its session and tells the agent here.
    pub(super) fn deliver_died(&mut self, frame: &Frame) {
        let (proc, incarnation) = (frame.head.from.proc, frame.head.rank);
        if frame.head.flags == fault::HOST_DIED {
            // Now, for it may have a successor whose calls are to stay.
            self.withdraw_calls(proc);
        }
        let peer = self.peers.entry(proc).or_default();
        peer.is_watched = false;
        let is_old = incarnation < peer.incarnation.unwrap_or(peer.living_from);
        // Asked again, its host says the same: nobody has taken the place.
        let is_still_dead = peer.incarnation.is_none()
            && incarnation.saturating_add(1) == peer.living_from
            && matches!(peer.reach, Reach::Dialling { .. });
        if (!is_old || is_still_dead) && !self.is_agent_of(proc) {
            let code = if frame.head.flags == 0 { fault::PROC_DIED } else { frame.head.flags };
            self.bury(proc, incarnation.saturating_add(1), code, frame.tail.clone());
        } else if is_old
            && frame.head.flags != fault::HOST_DIED
            && proc.host != self.config.me.host
            && self.has_pending(proc)
        {
            // What was sent since its host said so may have met another death, which nobody was
            // to tell.
            let peer = self.peer(proc);
            peer.is_watched = true;
            let living_from = peer.living_from;
            self.watch_incarnation(proc, living_from);
        }
        self.tell_agent(frame.clone());
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

/// What a peer says of itself when a link opens.
struct Greeting {
    incarnation: u32,
    /// Which incarnation of us it speaks to; a later one than we are when it knows us for dead.
    of: u32,
    received: u64,
}

/// Compares secrets in a time that does not depend on where they differ.
fn is_same(left: &[u8; 32], right: &[u8; 32]) -> bool {
    left.iter().zip(right).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}
