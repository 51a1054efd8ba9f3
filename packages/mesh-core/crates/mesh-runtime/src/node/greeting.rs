//! The greetings that two processes exchange when a connection opens, and their evaluation.

use super::epoch::{FENCE, first_incarnation};
use super::peer::{Link, LinkState};
use super::{Effect, LinkId, Node};
use bytes::{BufMut, BytesMut};
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};

/// Length in bytes of the body of a hello or welcome.
const GREETING_LEN: usize = 16 + 32 + 4 + 4 + 8;

/// Flag of a welcome that only reports that the addressed process no longer exists.
const GONE: u8 = 2;

/// Builds the reply of a worker to a hello for a job that it no longer serves.
///
/// The reply reports that the addressed process has ended. Returns `None` if the frame is not a
/// hello.
pub fn gone_reply(hello: &Frame) -> Option<Frame> {
    let tail: &[u8; GREETING_LEN] = hello.tail.as_ref().try_into().ok()?;
    let mut head = Head::new(Kind::Welcome, hello.head.from, hello.head.to);
    head.flags = GONE;
    let mut greeting = BytesMut::from(&tail[..]);
    // Exchange the two incarnations, as if the addressed process had replied.
    greeting[48..52].copy_from_slice(&tail[52..56]);
    greeting[52..56].copy_from_slice(&tail[48..52]);
    greeting[56..].fill(0);
    (hello.head.kind == Kind::Hello).then(|| Frame { head, tail: greeting.freeze() })
}

/// The information that a peer sends about itself when a connection opens.
struct Greeting {
    incarnation: u32,
    /// The incarnation of this process that the peer addresses.
    ///
    /// It is later than our own if the peer knows that we are dead.
    of: u32,
    received: u64,
}

impl Node {
    pub(super) fn receive_hello(&mut self, id: LinkId, frame: &Frame) {
        let proc = frame.head.from.proc;
        let is_local = self.links.get(&id).is_some_and(|link| link.is_local);
        let here = self.config.me.host;
        let may_greet =
            if is_local { proc.host == here } else { proc.host != here && proc.slot == 0 };
        if !may_greet {
            return self.close(id);
        }
        let Some(greeting) = self.check_greeting(frame) else { return self.close(id) };
        if !is_local && self.check_epoch(id, proc, frame, &greeting) {
            return;
        }
        let is_lower = self.config.me < proc;
        let peer = self.peers.entry(proc).or_default();
        let oldest = peer.incarnation.unwrap_or(peer.living_from);
        let is_stale = greeting.incarnation < oldest;
        if is_stale
            || (is_lower && matches!(peer.link_state, LinkState::Dialling { link: Some(_), .. }))
        {
            // Either the peer is an old process, or both sides have connected and our connection
            // stays.
            return self.close(id);
        }
        let old = match peer.link_state {
            LinkState::Up(link) => Some(link),
            LinkState::Dialling { link, .. } => link,
            LinkState::Idle | LinkState::Dead => None,
        };
        self.links.insert(id, Link { peer: Some(proc), is_dialled: false, is_local });
        if let Some(old) = old {
            self.close(old);
        }
        self.note_incarnation(proc, greeting.incarnation);
        self.greet(id, proc, Kind::Welcome);
        self.link_up(id, proc, greeting.received);
    }

    pub(super) fn receive_welcome(&mut self, id: LinkId, proc: ProcId, frame: &Frame) {
        let Some(greeting) = self.check_greeting(frame) else { return self.close(id) };
        if frame.head.from.proc != proc {
            return self.close(id);
        }
        let is_remote = proc.host != self.config.me.host;
        if is_remote && frame.head.flags & GONE != 0 {
            self.close(id);
            self.note_responder(proc.host, false);
            self.report_session_end(proc, greeting.incarnation);
            return self.reconnect(id, proc);
        }
        if is_remote && self.check_epoch(id, proc, frame, &greeting) {
            return self.reconnect(id, proc);
        }
        // If the incarnation is another one, the session ends here, but this connection stays.
        self.peer(proc).link_state = LinkState::Idle;
        self.note_incarnation(proc, greeting.incarnation);
        self.link_up(id, proc, greeting.received);
    }

    /// Connects again after a pause, to the process that has replaced or will replace a peer.
    fn reconnect(&mut self, id: LinkId, proc: ProcId) {
        let LinkState::Dialling { link, .. } = &mut self.peer(proc).link_state else { return };
        if *link == Some(id) {
            *link = None;
            self.connect_failed(proc);
        }
    }

    /// Handles a greeting between two agents that disagree about the epoch of one of their hosts.
    ///
    /// Returns whether they disagree. In this case the connection closes, and an agent that is dead
    /// is notified.
    fn check_epoch(
        &mut self,
        id: LinkId,
        proc: ProcId,
        frame: &Frame,
        greeting: &Greeting,
    ) -> bool {
        let epoch = self.failure_detector.epoch(proc.host);
        let is_dead = self.failure_detector.exit_report(proc.host).is_some();
        let is_stale = greeting.incarnation < first_incarnation(epoch + u32::from(is_dead));
        if is_stale && proc.host.0 == 0 {
            // A lost root has no authority any more, so it cannot declare us dead either.
            self.fence_peer(id, proc);
            return true;
        }
        if greeting.of > self.config.incarnation && self.config.me.host.0 == 0 {
            // Another root has taken over the peer, or will: it no longer serves this process.
            self.close(id);
            self.host_taken_over(proc.host);
            return true;
        }
        if greeting.of > self.config.incarnation {
            if frame.head.kind == Kind::Hello {
                // This lets the peer know that its notification has arrived.
                self.greet(id, proc, Kind::Welcome);
            }
            self.close(id);
            self.handle_fence();
            return true;
        }
        if is_stale {
            self.fence_peer(id, proc);
        } else if greeting.incarnation >= first_incarnation(epoch + 1)
            || frame.head.flags & FENCE != 0
        {
            // We do not know yet that this machine has replaced another: it will connect again.
            self.close(id);
        } else {
            return false;
        }
        true
    }

    pub(super) fn greet(&mut self, link: LinkId, to: ProcId, kind: Kind) {
        let peer = self.peer(to);
        let received = peer.session.received();
        // `received` refers to the incarnation that sent these frames, not to the next one.
        let of = peer.incarnation.unwrap_or(peer.living_from);
        let frame = self.greeting(to, kind, of, received);
        self.effects.push_back(Effect::Transmit { link, frame });
    }

    /// Builds a greeting of this process for `to`.
    ///
    /// `received` is the last frame that has arrived from incarnation `of`.
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
            && equals_in_constant_time(token, &self.config.token)
            && frame.head.to.proc == self.config.me;
        is_ours.then_some(Greeting {
            incarnation: u32::from_le_bytes(*incarnation),
            of,
            received: if is_of_me { received } else { 0 },
        })
    }
}

/// Compares secrets in constant time, regardless of where they differ.
fn equals_in_constant_time(left: &[u8; 32], right: &[u8; 32]) -> bool {
    left.iter().zip(right).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
}
