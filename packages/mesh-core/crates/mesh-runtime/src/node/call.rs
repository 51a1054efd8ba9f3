//! Calls, one-way messages and replies.

use super::bulk::PIECE_LEN;
use super::postponed::head_of;
use super::{Effect, Node, Port};
use crate::events::{EventKind, Subject};
use crate::fault;
use crate::mailbox::Closed;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind, TAIL_LEN_MAX};
use mesh_wire::id::{Address, PortId, ProcId};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// The longest message that is cast: the cast header before it has to fit in the frame, too.
const CAST_LEN_MAX: usize = TAIL_LEN_MAX - (16 << 20);

/// One receiver of a call: its process and its rank in the region that was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The process.
    pub proc: ProcId,
    /// The rank.
    pub rank: u32,
}

/// A message to one port in some processes.
#[derive(Clone, Debug)]
pub struct CallSpec {
    /// [`Kind::Call`], [`Kind::Post`] or [`Kind::Spawn`].
    pub kind: Kind,
    /// The receivers.
    pub targets: Arc<[Target]>,
    /// The port, the same in each process.
    pub port: PortId,
    /// Length in bytes of the meta at the start of `tail`.
    pub meta_len: u16,
    /// Number of part descriptors after the meta.
    pub part_count: u8,
    /// Meta, descriptors, body.
    pub tail: Bytes,
    /// How many messages this process may have outstanding at each receiver.
    pub window: u32,
    /// How long to wait for the replies.
    pub timeout: Option<Duration>,
}

/// The reason why a message was not sent. No part of it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendError {
    /// This process has `window` outstanding messages at a receiver: wait for [`Effect::Credited`].
    Full(Target),
    /// Too many bytes are queued for the process: wait for [`Effect::Credited`].
    Backlog(ProcId),
}

/// The reply of one receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The rank that replied.
    pub rank: u32,
    /// 0 for a value, otherwise a code of [`crate::fault`].
    pub code: u8,
    /// The frame: its body is the value or the detail. Created locally for a death or a deadline.
    pub frame: Frame,
}

/// The progress of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More replies will arrive.
    Waiting,
    /// No more replies will arrive.
    Complete,
}

/// The replies of a call.
#[derive(Debug)]
pub(super) struct PendingCall {
    port: PortId,
    targets: Arc<[Target]>,
    /// Number of replies that are still to arrive.
    missing: usize,
    /// Which targets have replied; only maintained if there are several.
    has_replied: Vec<bool>,
    replies: Vec<Reply>,
    /// Wake the consumer at each reply, not only at the end.
    is_stream: bool,
    /// The replies will not be taken.
    is_forgotten: bool,
    /// The agent is notified of an exception among replies that are not taken.
    reports_exception: bool,
    /// How long its caller wanted to wait.
    timeout: Option<Duration>,
    /// The subject of its events; empty if events were not recorded when the call was sent.
    subject: Subject,
}

impl PendingCall {
    pub(super) fn is_ready(&self) -> bool {
        self.missing == 0 || (self.is_stream && !self.replies.is_empty())
    }

    /// Whether replies are still to arrive.
    pub(super) fn is_open(&self) -> bool {
        self.missing > 0
    }

    /// Returns the replies that were not taken yet.
    pub(super) fn replies(&self) -> &[Reply] {
        &self.replies
    }

    pub(super) fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// Returns the process of a rank.
    pub(super) fn proc_of(&self, rank: u32) -> Option<ProcId> {
        let guess = self.targets.get(rank as usize).filter(|target| target.rank == rank);
        let found = guess.or_else(|| self.targets.iter().find(|target| target.rank == rank));
        found.map(|target| target.proc)
    }

    /// Returns the index of the target with this process and rank if it has not replied yet.
    fn open_target(&self, proc: ProcId, rank: u32) -> Option<usize> {
        let guess = rank as usize;
        let is_match = |target: &Target| target.rank == rank && target.proc == proc;
        let index = match self.targets.get(guess) {
            Some(target) if is_match(target) => guess,
            _ => self.targets.iter().position(is_match)?,
        };
        let is_open = self.missing > 0 && !self.has_replied.get(index).copied().unwrap_or(false);
        is_open.then_some(index)
    }

    fn record(&mut self, index: usize, reply: Reply) {
        if let Some(flag) = self.has_replied.get_mut(index) {
            *flag = true;
        }
        self.missing -= 1;
        self.replies.push(reply);
    }

    fn open_indexes(&self) -> Vec<usize> {
        if self.missing == 0 {
            return Vec::new();
        }
        let all = 0..self.targets.len();
        all.filter(|index| !self.has_replied.get(*index).copied().unwrap_or(false)).collect()
    }
}

impl Node {
    /// Sends a message to every target and opens a port for the replies.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was sent.
    pub fn call(&mut self, spec: &CallSpec) -> Result<PortId, SendError> {
        self.admit_new(spec)?;
        let (reply_port, subject) = self.open_call(spec);
        self.send_all(spec, reply_port, true, subject);
        Ok(reply_port)
    }

    /// Opens a port for the replies of a call.
    pub(super) fn open_call(&mut self, spec: &CallSpec) -> (PortId, Subject) {
        let reply_port = self.new_port();
        let several = if spec.targets.len() > 1 { spec.targets.len() } else { 0 };
        let pending = PendingCall {
            port: spec.port,
            targets: Arc::clone(&spec.targets),
            missing: spec.targets.len(),
            has_replied: vec![false; several],
            replies: Vec::with_capacity(spec.targets.len()),
            is_stream: false,
            is_forgotten: false,
            reports_exception: false,
            timeout: spec.timeout,
            subject: self.subject_of(spec),
        };
        let subject = pending.subject;
        self.ports.insert(reply_port, Port::Call(pending));
        if let Some(timeout) = spec.timeout {
            self.deadlines.push(Reverse((self.now + timeout, reply_port)));
        }
        (reply_port, subject)
    }

    /// Sends a message to every target without replies.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was sent.
    pub fn send(&mut self, spec: &CallSpec) -> Result<(), SendError> {
        self.admit_new(spec)?;
        let subject = self.subject_of(spec);
        self.send_all(spec, PortId::NONE, false, subject);
        Ok(())
    }

    /// Sends a message whose replies go to a channel of this process.
    ///
    /// # Errors
    /// [`SendError`]; then nothing was sent.
    pub fn send_with_reply_port(
        &mut self,
        spec: &CallSpec,
        reply_port: PortId,
    ) -> Result<(), SendError> {
        self.admit_new(spec)?;
        let subject = self.subject_of(spec);
        self.send_all(spec, reply_port, false, subject);
        Ok(())
    }

    /// Replies to a message that was taken out of a mailbox. Code 0 is a value.
    pub fn reply(&mut self, request: &Head, code: u8, meta: (u16, u8), tail: Bytes) {
        self.reply_about(request, Subject::default(), code, meta, tail);
    }

    /// Like [`Node::reply`]; the event of the reply contains the subject of the message.
    pub fn reply_to_message(&mut self, message: &Frame, code: u8, meta: (u16, u8), tail: Bytes) {
        let subject = self.events.subject(&message.head, message.meta());
        self.reply_about(&message.head, subject, code, meta, tail);
    }

    fn reply_about(
        &mut self,
        request: &Head,
        subject: Subject,
        code: u8,
        meta: (u16, u8),
        tail: Bytes,
    ) {
        if !request.expects_reply() {
            return;
        }
        let kind = if code == 0 { Kind::Reply } else { Kind::Fault };
        let mut head = Head::new(kind, request.from, request.to);
        head.flags = code;
        head.rank = request.rank;
        (head.meta_len, head.part_count) = meta;
        if self.events.is_on() {
            let (from, len) = (request.from, tail.len());
            self.record(EventKind::Answered, request.to.port, &head, from, len, subject);
        }
        self.dispatch(Frame { head, tail });
    }

    /// Requests a wake-up at each reply of a call.
    pub fn set_stream(&mut self, reply_port: PortId) {
        if let Some(Port::Call(call)) = self.ports.get_mut(&reply_port) {
            call.is_stream = true;
        }
    }

    /// Moves the replies that have arrived into `out`; forgets the call if it is complete.
    pub fn take_replies(&mut self, reply_port: PortId, out: &mut Vec<Reply>) -> Progress {
        let Some(Port::Call(call)) = self.ports.get_mut(&reply_port) else {
            return Progress::Complete;
        };
        out.append(&mut call.replies);
        if call.missing > 0 {
            return Progress::Waiting;
        }
        self.ports.remove(&reply_port);
        Progress::Complete
    }

    /// Lets a call run although its replies will not be taken.
    pub fn forget(&mut self, reply_port: PortId) {
        match self.ports.get_mut(&reply_port) {
            Some(Port::Call(call)) if call.missing > 0 => call.is_forgotten = true,
            Some(Port::Call(_)) => self.end_forgotten(reply_port),
            _ => {}
        }
    }

    /// Like [`Node::forget`]; if the endpoint has raised an exception, or does so later, this
    /// process receives it at [`PortId::AGENT`].
    pub fn abandon(&mut self, reply_port: PortId) {
        if let Some(Port::Call(call)) = self.ports.get_mut(&reply_port) {
            call.reports_exception = true;
        }
        self.forget(reply_port);
    }

    /// Drops the replies of a call that is complete.
    fn end_forgotten(&mut self, reply_port: PortId) {
        if let Some(Port::Call(call)) = self.ports.get(&reply_port)
            && call.reports_exception
            && let Some(raised) = call.replies.iter().find(|reply| reply.code == fault::RAISED)
        {
            let frame = raised.frame.clone();
            self.notify_agent(frame);
        }
        self.drop_port(reply_port);
    }

    /// Whether a call has failed with exactly this detail and waits for its caller.
    ///
    /// The call must not be forgotten, and its replies must not be taken yet.
    pub fn has_pending_fault(&self, detail: &[u8]) -> bool {
        let is_it = |reply: &Reply| reply.code != 0 && reply.frame.tail == detail;
        self.ports.values().any(|port| match port {
            Port::Call(call) => !call.is_forgotten && call.replies.iter().any(is_it),
            Port::Mailbox(_) => false,
        })
    }

    /// Cancels a call.
    ///
    /// Receivers are notified, later replies are dropped, and waiters are woken. Returns `false` if
    /// the replies were taken already.
    pub fn cancel(&mut self, reply_port: PortId) -> bool {
        let Some(Port::Call(call)) = self.ports.remove(&reply_port) else { return false };
        self.cancel_targets(reply_port, &call);
        self.discard_replies(&call);
        self.effects.push_back(Effect::Ready(reply_port));
        true
    }

    /// Returns the calls that wait for a reply, with the receiver of each: the wait-for graph.
    pub fn waits(&self) -> impl Iterator<Item = (PortId, Address)> + '_ {
        self.ports.iter().flat_map(|(reply_port, port)| {
            let call = match port {
                Port::Call(call) => Some(call),
                Port::Mailbox(_) => None,
            };
            call.into_iter().flat_map(|call| {
                let open = call.open_indexes().into_iter();
                open.map(|i| (*reply_port, Address { proc: call.targets[i].proc, port: call.port }))
            })
        })
    }

    /// Fails every open target of a call with [`fault::DEADLINE`] and notifies the receivers.
    ///
    /// The detail is the timeout in seconds, as a little-endian double.
    pub(super) fn expire(&mut self, reply_port: PortId) {
        let Some(Port::Call(call)) = self.ports.remove(&reply_port) else { return };
        self.cancel_targets(reply_port, &call);
        let timeout_s = call.timeout.unwrap_or_default().as_secs_f64();
        self.ports.insert(reply_port, Port::Call(call));
        let detail = Bytes::copy_from_slice(&timeout_s.to_le_bytes());
        self.fail_open_targets(reply_port, |_| true, fault::DEADLINE, &detail);
    }

    /// Fails the missing replies of one call, because this process is leaving the job.
    pub(super) fn fail_calls_on(&mut self, reply_port: PortId, closed: &Closed) {
        self.withdraw_postponed(reply_port);
        self.fail_open_targets(reply_port, |_| true, closed.code, &closed.detail);
    }

    /// Fails the missing replies of `proc` in all calls of this process.
    pub(super) fn fail_calls_to(&mut self, proc: ProcId, code: u8, detail: &Bytes) {
        let is_hit = |port: &Port| match port {
            Port::Call(call) => call.targets.iter().any(|target| target.proc == proc),
            Port::Mailbox(_) => false,
        };
        let hit =
            self.ports.iter().filter(|(_, port)| is_hit(port)).map(|(reply_port, _)| *reply_port);
        let mut hit: Vec<PortId> = hit.collect();
        hit.sort_unstable();
        for reply_port in hit {
            self.fail_open_targets(reply_port, |target| target.proc == proc, code, detail);
        }
    }

    /// Fails the missing replies of one process in one call.
    pub(super) fn fail_call(&mut self, reply_port: PortId, proc: ProcId, code: u8) {
        self.fail_open_targets(reply_port, |target| target.proc == proc, code, &Bytes::new());
    }

    fn fail_open_targets(
        &mut self,
        reply_port: PortId,
        is_hit: impl Fn(&Target) -> bool,
        code: u8,
        detail: &Bytes,
    ) {
        let Some(Port::Call(call)) = self.ports.get_mut(&reply_port) else { return };
        let me = Address { proc: self.config.me, port: reply_port };
        for index in call.open_indexes() {
            let target = call.targets[index];
            if !is_hit(&target) {
                continue;
            }
            let from = Address { proc: target.proc, port: call.port };
            let mut head = Head::new(Kind::Fault, me, from);
            (head.flags, head.rank) = (code, target.rank);
            let frame = Frame { head, tail: detail.clone() };
            call.record(index, Reply { rank: target.rank, code, frame });
        }
        if call.missing == 0 && call.is_forgotten {
            self.end_forgotten(reply_port);
        } else if call.is_ready() {
            self.effects.push_back(Effect::Ready(reply_port));
        }
    }

    pub(super) fn deliver_reply(&mut self, frame: Frame) {
        let (reply_port, from) = (frame.head.to.port, frame.head.from);
        if self.events.is_on() {
            let (other, len) = (Address { proc: from.proc, port: reply_port }, frame.tail.len());
            let subject = match self.ports.get(&reply_port) {
                Some(Port::Call(call)) => call.subject,
                _ => Subject::default(),
            };
            self.record(EventKind::Completed, from.port, &frame.head, other, len, subject);
        }
        let is_ready = match self.ports.get_mut(&reply_port) {
            Some(Port::Call(call)) => {
                let Some(index) = call.open_target(from.proc, frame.head.rank) else {
                    return self.discard(&frame);
                };
                let (rank, code) = (frame.head.rank, frame.head.flags);
                call.record(index, Reply { rank, code, frame });
                let (is_ready, is_over) = (call.is_ready(), call.missing == 0);
                if is_over && call.is_forgotten {
                    self.end_forgotten(reply_port);
                }
                is_ready
            }
            // This is a reply to a channel, which the sender named with `send_with_reply_port`.
            Some(Port::Mailbox(mailbox)) => match mailbox.push(frame) {
                Ok(()) => true,
                Err((frame, _)) => {
                    self.discard(&frame);
                    false
                }
            },
            // The caller no longer waits, and took its credit back when it gave up.
            None => return self.discard(&frame),
        };
        self.credited(from, 1);
        if is_ready {
            self.effects.push_back(Effect::Ready(reply_port));
        }
    }

    /// Whether every target has capacity for the message.
    pub fn has_capacity(&self, spec: &CallSpec) -> bool {
        self.first_busy(spec).is_none() && self.admit(spec).is_ok()
    }

    /// Admits a message that was not postponed, and that overtakes none.
    fn admit_new(&mut self, spec: &CallSpec) -> Result<(), SendError> {
        match self.first_busy(spec) {
            Some(target) => Err(SendError::Full(target)),
            None => self.admit_or_request_ack(spec),
        }
    }

    /// Returns the first target to which postponed calls wait.
    fn first_busy(&self, spec: &CallSpec) -> Option<Target> {
        let is_busy = |target: &&Target| self.postponed.has_call_to(target.proc, spec.port);
        if self.postponed.is_empty() { None } else { spec.targets.iter().find(is_busy).copied() }
    }

    /// Like [`Node::admit`]; requests the ack that frees capacity if too many bytes are queued.
    pub(super) fn admit_or_request_ack(&mut self, spec: &CallSpec) -> Result<(), SendError> {
        let admitted = self.admit(spec);
        if let Err(SendError::Backlog(proc)) = admitted {
            self.request_ack(proc);
        }
        admitted
    }

    /// Checks that every target has capacity, so that a message reaches all targets or none.
    fn admit(&self, spec: &CallSpec) -> Result<(), SendError> {
        for target in spec.targets.iter() {
            let peer = self.peers.get(&target.proc);
            if peer.is_some_and(|peer| peer.outstanding(spec.port) >= spec.window) {
                return Err(SendError::Full(*target));
            }
            // Frames for a process of another host wait in the session with an agent.
            let hop = self.next_hop(target.proc);
            let hop = if hop == target.proc { peer } else { self.peers.get(&hop) };
            if hop.is_some_and(|hop| hop.unacked_bytes() > self.config.backlog_bytes_max) {
                return Err(SendError::Backlog(target.proc));
            }
        }
        Ok(())
    }

    /// Returns the subject of the events of a message.
    pub(super) fn subject_of(&mut self, spec: &CallSpec) -> Subject {
        if !self.events.is_on() {
            return Subject::default();
        }
        let to = Address { proc: self.config.me, port: spec.port };
        let meta = spec.tail.get(..usize::from(spec.meta_len)).unwrap_or_default();
        self.events.subject(&Head::new(spec.kind, to, Address::default()), meta)
    }

    pub(super) fn send_all(
        &mut self,
        spec: &CallSpec,
        reply_port: PortId,
        is_merged: bool,
        subject: Subject,
    ) {
        let from = Address { proc: self.config.me, port: reply_port };
        let is_cast = self.is_cast(spec);
        let mut remote = Vec::new();
        for target in spec.targets.iter() {
            let is_cast = is_cast && target.proc.host != self.config.me.host;
            if !is_cast && target.proc.host != self.config.me.host {
                // This process has no connection that breaks when the target dies, so the host of
                // the target has to report the death. The request precedes the message on the same
                // route, so that no death in between is missed.
                self.watch(target.proc);
            }
            let head = head_of(spec, *target, from);
            if self.events.is_on() {
                let (other, len) = (Address { port: reply_port, ..head.to }, spec.tail.len());
                self.record(EventKind::Sent, spec.port, &head, other, len, subject);
            }
            let is_agent = self.config.me.slot == 0;
            let peer = self.peer(target.proc);
            if spec.kind != Kind::Spawn {
                peer.debit(spec.port);
            }
            if is_cast {
                // A cast implies a request to report the deaths of its receivers.
                peer.is_watched |= is_agent;
                remote.push(*target);
            } else {
                self.dispatch(Frame { head, tail: spec.tail.clone() });
            }
        }
        if is_cast {
            self.cast(spec, reply_port, is_merged, &remote);
        }
    }

    /// Whether several frames would take the same route, or one long frame goes to several hosts.
    fn is_cast(&self, spec: &CallSpec) -> bool {
        let here = self.config.me.host;
        let mut remote = spec.targets.iter().map(|target| target.proc.host).filter(|h| *h != here);
        let Some(mut last) = remote.next() else { return false };
        let (mut hosts, mut has_pair) = (1u16, false);
        for host in remote {
            has_pair |= host == last;
            hosts = u16::saturating_add(hosts, u16::from(host != last));
            last = host;
        }
        let is_wide = hosts > self.relays.fanout || hosts > 1 && spec.tail.len() > PIECE_LEN;
        (has_pair || is_wide || hosts > 1 && self.config.me.slot != 0)
            && spec.tail.len() < CAST_LEN_MAX
    }

    fn cancel_targets(&mut self, reply_port: PortId, call: &PendingCall) {
        if self.withdraw_postponed(reply_port) {
            return;
        }
        let from = Address { proc: self.config.me, port: reply_port };
        for index in call.open_indexes() {
            let target = call.targets[index];
            let to = Address { proc: target.proc, port: call.port };
            self.credited(to, 1);
            let mut head = Head::new(Kind::Cancel, to, from);
            head.rank = target.rank;
            if self.events.is_on() {
                let other = Address { port: reply_port, ..to };
                self.record(EventKind::Cancelled, call.port, &head, other, 0, call.subject);
            }
            self.dispatch(Frame::bare(head));
        }
    }

    /// Whether a message to `proc` is outstanding, or a call waits for a reply of `proc`.
    pub(super) fn has_pending(&self, proc: ProcId) -> bool {
        self.peers.get(&proc).is_some_and(|peer| peer.has_outstanding())
            || self.waits().any(|(_, receiver)| receiver.proc == proc)
    }

    /// Notes that `count` messages to `receiver` are no longer outstanding.
    pub(super) fn credited(&mut self, receiver: Address, count: u32) {
        if let Some(peer) = self.peers.get_mut(&receiver.proc)
            && peer.credit(receiver.port, count)
        {
            self.effects.push_back(Effect::Credited);
            self.postponed.note_capacity(receiver);
        }
    }
}
