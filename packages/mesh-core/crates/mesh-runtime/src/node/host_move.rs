//! Moves of hosts to other machines, without the failure of any call.
//!
//! While a host moves, the agents of the other hosts hold the messages for it. The host processes
//! everything that it has received, so that its mailboxes are empty, and hands over its state. Then
//! the next machine takes the number of the host, as after a death, but no process is notified of a
//! death: calls stay pending, and the held messages are sent to the new machine.

use super::epoch::first_incarnation;
use super::peer::LinkState;
use super::{Node, Port};
use crate::fault;
use crate::hash::FastMap;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};

/// The name prefixes of requests to agents that are not held: the requests of the move itself, and
/// the requests with which the next machine discovers the other hosts.
const NOT_HELD: [&[u8]; 3] = [b"move_", b"host_", b"routes"];

/// The messages that wait until a host has moved, oldest first.
///
/// If there are none, as in most processes, it takes the space of a pointer.
#[derive(Debug, Default)]
pub(super) struct HeldMessages(Option<Box<FastMap<HostId, Vec<Frame>>>>);

/// Whether a process has pending work, and how many messages and replies it has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Number of messages and replies that have arrived, without the queries of this number by the
    /// agent of the host.
    pub received_count: u64,
    /// Whether no message is queued or in transit from here, and no reply is missing.
    pub is_quiet: bool,
}

impl HeldMessages {
    pub(super) fn holds(&self, host: HostId) -> bool {
        self.0.as_ref().is_some_and(|held| held.contains_key(&host))
    }

    /// Adds a message for a host that moves.
    pub(super) fn push(&mut self, host: HostId, frame: Frame) {
        self.begin(host).push(frame);
    }

    fn begin(&mut self, host: HostId) -> &mut Vec<Frame> {
        self.0.get_or_insert_default().entry(host).or_default()
    }

    fn of(&mut self, host: HostId) -> Option<&mut Vec<Frame>> {
        self.0.as_mut()?.get_mut(&host)
    }

    /// Takes the messages for a host, for which no others are held from now on.
    fn take(&mut self, host: HostId) -> Option<Vec<Frame>> {
        let taken = self.0.as_mut()?.remove(&host);
        self.0.take_if(|held| held.is_empty());
        taken
    }
}

impl Node {
    /// Holds messages for a host from now on, because it is about to move.
    ///
    /// Replies to calls of that host are still sent: it needs them to process everything that it
    /// has received. Requests of agents that concern moves or other hosts are sent, too.
    pub fn hold_host(&mut self, host: HostId) {
        if host != self.config.me.host && !self.is_host_dead(host) {
            self.held_messages.begin(host);
        }
    }

    /// Whether a host has received everything that was sent to it; otherwise requests an ack.
    pub fn has_received_all(&mut self, host: HostId) -> bool {
        let agent = host.agent();
        let Some(peer) = self.peers.get(&agent) else { return true };
        if !peer.has_unacked() {
            return true;
        }
        self.send_ping(agent);
        false
    }

    /// Sends the held messages to a host, which has moved or will not move.
    ///
    /// A machine that has taken over the host is first notified which processes watch its
    /// processes.
    pub fn release_host(&mut self, host: HostId) {
        let Some(held) = self.held_messages.take(host) else { return };
        let agent = Address { proc: host.agent(), port: PortId::NONE };
        for (slot, watcher) in self.failure_detector.watchers_on(host) {
            let mut watch = Head::new(Kind::Watch, agent, watcher);
            watch.rank = slot;
            self.transmit(Frame::bare(watch));
        }
        for frame in held {
            self.transmit(frame);
        }
    }

    /// Notes that another machine continues a host, with the state of its processes.
    ///
    /// Sessions with the previous machine end. Calls stay pending, because all that were sent to
    /// that machine were replied to, and the others are held.
    pub fn host_moved(&mut self, host: HostId, epoch: u32) {
        if host == self.config.me.host || epoch <= self.failure_detector.epoch(host) {
            return;
        }
        self.failure_detector.host_replaced(host, epoch);
        let living_from = first_incarnation(epoch);
        self.peer(host.agent());
        for proc in self.peers_on(host) {
            self.end_session(proc, living_from, LinkState::Idle);
        }
        self.fail_calls_to_agent(host.agent());
        self.note_responder(host, true);
        self.retransmit_relayed();
        self.send_pieces();
        self.note_capacity_anywhere();
    }

    /// Fails the requests to the agent of a host that has moved, which has not replied to them.
    ///
    /// They should have been completed or held: this bounds the consequences of an error.
    fn fail_calls_to_agent(&mut self, agent: ProcId) {
        let held = self.held_messages.of(agent.host).into_iter().flatten();
        let held: Vec<PortId> = held.map(|frame| frame.head.from.port).collect();
        let mut open: Vec<PortId> = self
            .waits()
            .filter(|(reply_port, to)| to.proc == agent && !held.contains(reply_port))
            .map(|(reply_port, _)| reply_port)
            .collect();
        open.sort_unstable();
        for reply_port in open {
            self.fail_call(reply_port, agent, fault::HOST_DIED);
        }
    }

    /// Holds a frame if its host moves, or returns it.
    pub(super) fn hold(&mut self, frame: Frame) -> Option<Frame> {
        let host = frame.head.to.proc.host;
        let Some(held) = self.held_messages.of(host) else { return Some(frame) };
        let is_of_agent = frame.head.to.port == PortId::AGENT && frame.head.from.proc.slot == 0;
        match frame.head.kind {
            Kind::Call
                if is_of_agent && NOT_HELD.iter().any(|name| frame.meta().starts_with(name)) =>
            {
                return Some(frame);
            }
            Kind::Call | Kind::Post | Kind::Spawn | Kind::Cast | Kind::Watch => held.push(frame),
            Kind::Cancel => {
                let is_its = |one: &Frame| one.head.from == frame.head.from;
                let Some(at) = held.iter().position(is_its) else { return Some(frame) };
                if held[at].head.kind == Kind::Cast {
                    // Other ranks may still wait for their replies.
                    held.push(frame);
                } else {
                    let withdrawn = held.remove(at);
                    self.discard(&withdrawn);
                }
            }
            _ => return Some(frame),
        }
        None
    }

    /// Drops the messages that were held for a host that has died; their senders are notified.
    pub(super) fn discard_held(&mut self, host: HostId) {
        for frame in self.held_messages.take(host).unwrap_or_default() {
            self.discard(&frame);
        }
    }

    /// Returns whether this process is quiet; if not, requests the acks that it waits for.
    pub fn activity(&mut self) -> Activity {
        let waiting: Vec<ProcId> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.has_unacked())
            .map(|(proc, _)| *proc)
            .collect();
        let has_queued = self.ports.values().any(|port| match port {
            Port::Mailbox(mailbox) => !mailbox.is_empty(),
            Port::Call(call) => call.is_open(),
        });
        let is_quiet = waiting.is_empty()
            && !has_queued
            && self.early_messages.is_empty()
            && self.postponed.is_empty()
            && !self.bulks.is_receiving();
        for proc in waiting {
            self.send_ping(proc);
        }
        Activity { received_count: self.received_count, is_quiet }
    }

    /// Returns the credit of all messages that were taken from the mailboxes of this process.
    pub fn return_credit(&mut self) {
        let mut owed = Vec::new();
        for (port, mailbox) in &mut self.ports {
            if let Port::Mailbox(mailbox) = mailbox {
                owed.extend(mailbox.take_owed().into_iter().map(|(to, count)| (*port, to, count)));
            }
        }
        owed.sort_unstable();
        for (port, sender, count) in owed {
            self.give_credit(sender, port, count);
        }
    }

    /// Counts an arrival, for [`Node::activity`].
    pub(super) fn count_arrival(&mut self, head: &Head) {
        let me = self.config.me;
        let is_counted = match head.kind {
            Kind::Call => head.to.port != PortId::AGENT || head.from.proc != me.host.agent(),
            Kind::Reply | Kind::Fault => me.slot != 0 || head.from.proc.host != me.host,
            Kind::Post | Kind::Spawn => true,
            _ => false,
        };
        self.received_count += u64::from(is_counted);
    }
}
