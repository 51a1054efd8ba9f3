//! One process of a job as a pure state machine.
//!
//! Every input of a process is a method here: a frame from a connection, a call from the program, a
//! death, the passage of time. Every output is an [`Effect`]. The state machine does no IO, reads
//! no clock and takes no lock, so the simulator runs a thousand of them in one thread, and the
//! engine runs one behind a mutex.
//!
//! # Layout
//! - `peer`: connections to other processes, and retransmission over the next connection
//! - `greeting`: the handshake when a connection opens
//! - `death`: the consequences of the deaths of processes and hosts
//! - `call`: calls and their replies; `postponed`: calls that wait until their receivers have
//!   capacity
//! - `cast`: one frame for all ranks of a host, and one combined reply from them
//! - `relay`: frames that hosts forward to each other along a tree
//! - `batch_timer`: the timer that limits how long collected items wait for the missing ones
//! - `bulk`: long frames in pieces
//! - `direct_receive`: direct receive of long messages from other hosts into shared memory
//! - `segment_refs`: references of messages to shared memory
//! - `failure_detector`: failure detection for other hosts
//! - `epoch`: machines that replace dead ones, and dead machines that return
//! - `host_move`: moves of hosts to other machines, without the failure of any call
//! - `trim`: release of unused memory
//! - `early_messages`: messages that arrive before the spawn of their receiver
//! - this file: ports, delivery, time

mod batch_timer;
mod bulk;
mod call;
mod cast;
mod death;
mod direct_receive;
mod early_messages;
mod epoch;
mod failure_detector;
mod greeting;
mod host_move;
mod peer;
mod postponed;
mod relay;
mod segment_refs;
mod trim;

pub use bulk::BulkId;
pub use call::{CallSpec, Progress, Reply, SendError, Target};
pub use direct_receive::ReceivedBody;
pub use epoch::{EPOCH_MAX, epoch_of, first_incarnation};
pub use failure_detector::HostWatch;
pub use greeting::gone_reply;
pub use host_move::Activity;
pub use peer::LinkId;
pub use segment_refs::PORT_MARK;

use crate::events::{Event, EventKind, Events, Subject};
use crate::fault;
use crate::hash::FastMap;
use crate::mailbox::{Closed, Mailbox};
use bulk::Bulks;
use bytes::Bytes;
use call::PendingCall;
use cast::Gathers;
use early_messages::{
    EarlyMessages, allocator_id, allocator_of, count_of_job, first_count, port_from_count,
};
use failure_detector::FailureDetector;
use host_move::HeldMessages;
use mesh_wire::frame::{Frame, HOPS_MAX, Head, Kind};
use mesh_wire::id::{Address, HostId, JobId, PortId, ProcId};
use peer::{Link, Peer};
use postponed::PostponedCalls;
use relay::Relays;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// The identity of this process, and its limits.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The process.
    pub me: ProcId,
    /// How many processes occupied this slot before.
    pub incarnation: u32,
    /// The job; frames of any other job are refused.
    pub job: JobId,
    /// Proof of membership in the job, presented in the handshake.
    pub token: [u8; 32],
    /// Number of bytes that may be queued for a peer before senders are blocked.
    pub backlog_bytes_max: usize,
}

/// The actions that the driver of a node has to perform, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the frame to the connection.
    Transmit {
        /// The connection.
        link: LinkId,
        /// The frame, with its sequence number.
        frame: Frame,
    },
    /// Open a connection to the process and report [`Node::connected`] or [`Node::connect_failed`].
    Connect {
        /// The process to connect to.
        peer: ProcId,
        /// How long to wait first.
        after: Duration,
    },
    /// Close the connection; the driver does not report this back.
    Close {
        /// The connection.
        link: LinkId,
    },
    /// Something arrived at this port: wake its waiters.
    Ready(PortId),
    /// Credit arrived: wake the senders that wait for it.
    Credited,
    /// A reader has released a part of one of our segments.
    Released {
        /// The process that read it.
        reader: ProcId,
        /// The segment.
        segment: u32,
        /// The generation of the segment.
        generation: u32,
    },
    /// A message has handed back a part of one of our segments.
    ///
    /// This process itself now holds the part until [`Effect::Released`]. The driver must do this
    /// before anyone can take the message, and before the effects that follow.
    Acquired {
        /// The segment.
        segment: u32,
        /// The generation of the segment.
        generation: u32,
    },
    /// Keep bytes of a message in shared memory.
    ///
    /// The driver reports [`Node::body_received`] when all of them are written. Emitted only after
    /// [`Node::enable_direct_receive`].
    WriteDirect {
        /// The message.
        id: BulkId,
        /// Total number of bytes of the message to keep.
        len: usize,
        /// Offset of `bytes` among these.
        at: usize,
        /// Some of these bytes.
        bytes: Bytes,
    },
    /// No more bytes of such a message will arrive: its sender is dead.
    Abort(BulkId),
    /// A process is dead.
    ///
    /// Its references to our segments are released; the parts of its segments that we hold stay
    /// readable.
    PeerDied(ProcId),
    /// A host has been silent for too long.
    ///
    /// The driver has to receive all pending input, and report what the transport knows about the
    /// host by [`Node::probed`].
    Probe(HostId),
}

/// A receiver in this process.
#[derive(Debug)]
enum Port {
    /// The mailbox of an actor or a channel.
    Mailbox(Mailbox),
    /// The replies of a call.
    Call(PendingCall),
}

/// One process of a job.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    /// Boxed because most processes have few peers, and a map has unused capacity.
    peers: FastMap<ProcId, Box<Peer>>,
    links: FastMap<LinkId, Link>,
    next_link: u32,
    ports: FastMap<PortId, Port>,
    next_port: u64,
    early_messages: EarlyMessages,
    /// Whether early messages wait for spawns without a limit, because the process is being set up.
    keeps_early_messages: bool,
    /// Number of pending replacements of each receiver that still exists.
    ///
    /// A replacement has the same port number.
    respawning: FastMap<PortId, u32>,
    deadlines: BinaryHeap<Reverse<(Duration, PortId)>>,
    failure_detector: FailureDetector,
    /// Another host of the job has declared this host dead.
    is_fenced: bool,
    gathers: Gathers,
    relays: Relays,
    bulks: Bulks,
    postponed: PostponedCalls,
    held_messages: HeldMessages,
    /// Number of messages and replies that have arrived.
    received_count: u64,
    effects: VecDeque<Effect>,
    events: Events,
    now: Duration,
}

impl Node {
    /// Creates a process without connections. Its agent mailbox is open.
    pub fn new(config: NodeConfig) -> Self {
        let incarnation = config.incarnation;
        let mut node = Self {
            config,
            peers: FastMap::default(),
            links: FastMap::default(),
            next_link: 0,
            ports: FastMap::default(),
            // A late reply to the process that occupied the slot before must match no port here.
            next_port: first_count(incarnation),
            early_messages: EarlyMessages::default(),
            keeps_early_messages: false,
            respawning: FastMap::default(),
            deadlines: BinaryHeap::new(),
            failure_detector: FailureDetector::default(),
            is_fenced: false,
            gathers: Gathers::default(),
            relays: Relays::default(),
            bulks: Bulks::default(),
            postponed: PostponedCalls::default(),
            held_messages: HeldMessages::default(),
            received_count: 0,
            effects: VecDeque::new(),
            events: Events::default(),
            now: Duration::ZERO,
        };
        node.open_mailbox(PortId::AGENT, u32::MAX);
        node
    }

    /// Returns the id of this process.
    pub fn me(&self) -> ProcId {
        self.config.me
    }

    /// Returns the number of processes that occupied this slot before, with the epoch of the host.
    pub fn incarnation(&self) -> u32 {
        self.config.incarnation
    }

    /// Drains the effects, oldest first. The driver empties them after each call.
    pub fn effects(&mut self) -> std::collections::vec_deque::Drain<'_, Effect> {
        if self.postponed.has_candidates() {
            self.send_postponed();
        }
        self.effects.drain(..)
    }

    /// Whether any effects are pending.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty() || self.postponed.has_candidates()
    }

    /// Notes that receivers may have capacity, for credit and for queued bytes.
    fn note_capacity_anywhere(&mut self) {
        self.effects.push_back(Effect::Credited);
        self.postponed.note_capacity_anywhere();
    }

    /// Returns a port number that is unique in this job; it contains the id of this process.
    ///
    /// The actors of a mesh use one port number in all their processes, so a number identifies the
    /// process that allocated it.
    pub fn new_port(&mut self) -> PortId {
        self.next_port += 1;
        port_from_count(self.config.me, self.next_port)
    }

    /// Skips the port numbers of the `job_count` jobs that this process was part of before.
    ///
    /// Late frames of those jobs therefore match no port of this one.
    pub fn skip_ports(&mut self, job_count: u32) {
        self.next_port += count_of_job(job_count);
    }

    /// Ends everything in this process that waits for a message or a reply: no more will arrive.
    pub fn end_all(&mut self) {
        let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
        let mut ports: Vec<PortId> = self.ports.keys().copied().collect();
        ports.sort_unstable();
        for port in ports {
            match self.ports.get(&port) {
                Some(Port::Call(_)) => self.fail_calls_on(port, &closed),
                Some(Port::Mailbox(_)) => self.close_mailbox(port, closed.clone()),
                None => {}
            }
        }
    }

    /// Opens a mailbox in which each sender may have `window` messages outstanding.
    ///
    /// An existing mailbox is reopened and keeps its contents.
    pub fn open_mailbox(&mut self, port: PortId, window: u32) {
        match self.ports.get_mut(&port) {
            Some(Port::Mailbox(mailbox)) => mailbox.reopen(),
            _ => {
                self.ports.insert(port, Port::Mailbox(Mailbox::new(window)));
            }
        }
        if let Some(count) = self.respawning.get_mut(&port) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.respawning.remove(&port);
        }
        for frame in self.early_messages.take(port) {
            self.deliver(frame);
        }
    }

    /// Notes which receivers will still be spawned here.
    ///
    /// Of the ports up to `up_to` that the allocator of `up_to` has allocated, only those in
    /// `expected` will be spawned. Messages to the others fail immediately with a fault.
    pub fn expect_spawns(&mut self, up_to: PortId, expected: Vec<PortId>) {
        let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
        for frame in self.early_messages.settle(up_to, expected) {
            if self.respawning.contains_key(&frame.head.to.port) {
                self.early_messages.keep(frame);
            } else {
                self.refuse(&frame, &closed);
            }
        }
    }

    /// Closes a mailbox: queued and later messages fail with `closed`.
    ///
    /// The port stays known, so that late callers receive the reason.
    pub fn close_mailbox(&mut self, port: PortId, closed: Closed) {
        let Some(Port::Mailbox(mailbox)) = self.ports.get_mut(&port) else { return };
        let queued = mailbox.close(closed.clone());
        for frame in queued {
            self.refuse(&frame, &closed);
        }
        self.effects.push_back(Effect::Ready(port));
    }

    /// Removes a port: queued and later messages fail with [`fault::STOPPED`].
    pub fn drop_port(&mut self, port: PortId) {
        match self.ports.remove(&port) {
            Some(Port::Mailbox(mut mailbox)) => {
                let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
                for frame in mailbox.close(closed.clone()) {
                    self.refuse(&frame, &closed);
                }
                for (sender, count) in mailbox.take_owed() {
                    self.give_credit(sender, port, count);
                }
            }
            Some(Port::Call(call)) => self.discard_replies(&call),
            None => {}
        }
    }

    /// Takes up to `max` messages out of a mailbox, oldest first.
    ///
    /// # Errors
    /// The reason if the mailbox is closed and empty, or [`fault::STOPPED`] if it does not exist.
    pub fn take_messages(
        &mut self,
        port: PortId,
        max: usize,
        out: &mut Vec<Frame>,
    ) -> Result<(), Closed> {
        let Some(Port::Mailbox(mailbox)) = self.ports.get_mut(&port) else {
            return Err(Closed { code: fault::STOPPED, detail: Bytes::new() });
        };
        let mut credits = Vec::new();
        while out.len() < max {
            let Some((frame, credit)) = mailbox.pop() else { break };
            if self.events.is_on() {
                let (head, at) = (&frame.head, self.now);
                let (peer, call) = (head.from.proc, head.from.port);
                let (rank, code, len) = (head.rank, 0, frame.tail.len());
                let kind = EventKind::Taken;
                let subject = self.events.subject(head, frame.meta());
                self.events.push(Event { at, kind, port, peer, call, rank, code, len, subject });
            }
            out.push(frame);
            credits.extend(credit);
        }
        if out.is_empty()
            && let Some(closed) = mailbox.closed()
        {
            return Err(closed.clone());
        }
        for (sender, count) in credits {
            self.give_credit(sender, port, count);
        }
        Ok(())
    }

    /// Notifies a sender that some of its messages have left a mailbox here.
    fn give_credit(&mut self, sender: ProcId, port: PortId, count: u32) {
        let to = Address { proc: sender, port: PortId::NONE };
        let mut head = Head::new(Kind::Credit, to, Address { proc: self.config.me, port });
        head.rank = count;
        self.dispatch(Frame::bare(head));
    }

    /// Whether a call from that address waits in a mailbox.
    pub fn has_queued(&self, port: PortId, from: Address) -> bool {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => mailbox.has_from(from),
            _ => false,
        }
    }

    /// Removes the queued calls of a process that has died; its one-way messages stay.
    fn withdraw_calls(&mut self, from: ProcId) {
        let mut withdrawn = Vec::new();
        for port in self.ports.values_mut() {
            if let Port::Mailbox(mailbox) = port {
                withdrawn.extend(mailbox.withdraw_all(from));
            }
        }
        withdrawn.iter().for_each(|frame| self.discard(frame));
    }

    /// Returns the number of messages queued in a mailbox.
    pub fn mailbox_len(&self, port: PortId) -> usize {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => mailbox.len(),
            _ => 0,
        }
    }

    /// Whether a consumer of the port would find something: a message, replies, an end.
    pub fn is_ready(&self, port: PortId) -> bool {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => !mailbox.is_empty() || mailbox.closed().is_some(),
            Some(Port::Call(call)) => call.is_ready(),
            None => true,
        }
    }

    /// Returns the events of this process, for subscribers.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Sets the time of the events that follow.
    pub fn set_now(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Records an event about a message; `other` is the other process and the port of the replies.
    fn record(
        &mut self,
        kind: EventKind,
        port: PortId,
        head: &Head,
        other: Address,
        len: usize,
        subject: Subject,
    ) {
        let (rank, code, at) = (head.rank, head.flags, self.now);
        let (peer, call) = (other.proc, other.port);
        self.events.push(Event { at, kind, port, peer, call, rank, code, len, subject });
    }

    /// Records an event about another process.
    fn record_peer(&mut self, kind: EventKind, peer: ProcId) {
        if self.events.is_on() {
            let (at, port, call) = (self.now, PortId::NONE, PortId::NONE);
            let (rank, code, len, subject) = (0, 0, 0, Subject::default());
            self.events.push(Event { at, kind, port, peer, call, rank, code, len, subject });
        }
    }

    /// Advances the time: calls whose deadline has passed fail.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(&Reverse((due, port))) = self.deadlines.peek() {
            if due > now {
                break;
            }
            self.deadlines.pop();
            self.expire(port);
        }
        self.check_hosts(now);
        self.flush_due_replies(now);
        self.flush_due_batches(now);
        let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
        for frame in self.early_messages.expire(now) {
            if self.keeps_early_messages || self.respawning.contains_key(&frame.head.to.port) {
                self.early_messages.keep(frame);
            } else {
                self.refuse(&frame, &closed);
            }
        }
    }

    /// Sets whether messages that arrive before the spawn of their receiver wait without a limit.
    ///
    /// When this is turned off, their wait starts again as if they had just arrived.
    pub fn keep_early_messages(&mut self, is_on: bool) {
        self.keeps_early_messages = is_on;
        if !is_on {
            self.early_messages.restart();
        }
    }

    /// Whether [`Node::advance`] has to be called soon.
    ///
    /// This is the case if something started to wait after the last call.
    pub fn is_untimed(&self) -> bool {
        self.early_messages.is_untimed() || self.gathers.is_untimed() || self.relays.is_untimed()
    }

    /// Returns when [`Node::advance`] has something to do next.
    pub fn next_deadline(&mut self) -> Option<Duration> {
        let waits =
            [self.early_messages.next_due(), self.gathers.next_due(), self.relays.next_due()];
        let others = [self.next_timeout(), self.failure_detector.next_check()];
        waits.into_iter().chain(others).flatten().min()
    }

    fn next_timeout(&mut self) -> Option<Duration> {
        while let Some(&Reverse((due, port))) = self.deadlines.peek() {
            if self.ports.contains_key(&port) {
                return Some(due);
            }
            self.deadlines.pop();
        }
        None
    }

    /// Sends a frame to the receiver in its head, which may be in this process.
    fn dispatch(&mut self, mut frame: Frame) {
        if frame.head.kind == Kind::Died {
            self.failure_detector.note_reported_death(&frame);
        }
        if frame.head.to.proc == self.config.me {
            return self.deliver(frame);
        }
        if frame.head.to.proc.host != self.config.me.host
            && matches!(frame.head.kind, Kind::Reply | Kind::Fault)
        {
            let Some(alone) = self.collect_reply(frame) else { return };
            frame = alone;
        } else if frame.head.kind == Kind::Cancel {
            self.stop_collecting_rank(&frame);
        }
        if frame.head.hops < HOPS_MAX {
            frame.head.hops += 1;
            self.transmit(frame);
        }
    }

    /// Handles a frame for this process.
    fn deliver(&mut self, frame: Frame) {
        self.count_arrival(&frame.head);
        match frame.head.kind {
            Kind::Call | Kind::Post => self.deliver_message(frame),
            Kind::Spawn => self.deliver_spawn(frame),
            Kind::Reply | Kind::Fault => self.deliver_reply(frame),
            Kind::Cancel => self.deliver_cancel(frame),
            Kind::Credit => self.credited(frame.head.from, frame.head.rank),
            Kind::Watch => self.deliver_watch(&frame),
            Kind::Died => self.deliver_died(&frame),
            // The engine has already taken the descriptor, so there is nothing to do.
            Kind::Segment => {}
            Kind::Release => self.effects.push_back(Effect::Released {
                reader: frame.head.from.proc,
                segment: frame.head.rank,
                generation: u32::from_le_bytes(first_u32(&frame.tail)),
            }),
            Kind::Cast => self.deliver_cast(&frame),
            Kind::Replies => self.deliver_replies(&frame),
            // Handshakes, acks and frames in transit never get here.
            Kind::Hello | Kind::Welcome | Kind::Ack | Kind::Ping => {}
            Kind::Attach | Kind::Attached | Kind::Relay | Kind::Batch | Kind::Piece => {}
        }
    }

    fn deliver_message(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        let is_early = !self.ports.contains_key(&port) && self.may_be_spawned(port);
        if is_early || self.respawning.contains_key(&port) {
            // It is delivered again after the spawn, and recorded only then.
            return self.early_messages.keep(frame);
        }
        if self.events.is_on() {
            let (from, len) = (frame.head.from, frame.tail.len());
            let subject = self.events.subject(&frame.head, frame.meta());
            self.record(EventKind::Received, port, &frame.head, from, len, subject);
        }
        let refused = match self.ports.get_mut(&port) {
            Some(Port::Mailbox(mailbox)) => match mailbox.push(frame) {
                Ok(()) => {
                    self.effects.push_back(Effect::Ready(port));
                    return;
                }
                Err(refused) => refused,
            },
            _ => (frame, Closed { code: fault::STOPPED, detail: Bytes::new() }),
        };
        self.refuse(&refused.0, &refused.1);
    }

    /// Whether an actor may still be spawned on the port.
    ///
    /// This is possible only if another process has allocated the number: a process allocates the
    /// numbers of its channels itself.
    fn may_be_spawned(&self, port: PortId) -> bool {
        port.0 >= PortId::FIRST_FREE
            && allocator_of(port) != allocator_id(self.config.me)
            && !self.early_messages.is_settled(port)
    }

    /// Opens the mailbox of a new actor immediately, and leaves the rest to the agent.
    ///
    /// Calls sent directly after the spawn find the mailbox. If an actor is restarted, messages
    /// that arrive from now on are for the new one: they wait until the agent opens the mailbox
    /// again.
    fn deliver_spawn(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        if self.ports.contains_key(&port) {
            *self.respawning.entry(port).or_default() += 1;
        } else {
            self.open_mailbox(port, u32::from_le_bytes(first_u32(frame.meta())));
        }
        self.notify_agent(frame);
    }

    /// Cancels a call. A queued call is removed; the agent has to end one that runs.
    fn deliver_cancel(&mut self, frame: Frame) {
        let early = self.early_messages.withdraw(frame.head.to.port, frame.head.from);
        if !early.is_empty() {
            return early.iter().for_each(|withdrawn| self.discard(withdrawn));
        }
        let Some(Port::Mailbox(mailbox)) = self.ports.get_mut(&frame.head.to.port) else { return };
        match mailbox.withdraw(frame.head.from) {
            Some(withdrawn) => self.discard(&withdrawn),
            None => self.notify_agent(frame),
        }
    }

    /// Puts a frame that concerns this process into the mailbox of its agent.
    pub(super) fn notify_agent(&mut self, frame: Frame) {
        if let Some(Port::Mailbox(agent)) = self.ports.get_mut(&PortId::AGENT)
            && agent.push(frame).is_ok()
        {
            self.effects.push_back(Effect::Ready(PortId::AGENT));
        }
    }

    /// Replies with a fault to a message that cannot be delivered, or returns its credit.
    ///
    /// The sender may be in any process.
    fn refuse(&mut self, frame: &Frame, closed: &Closed) {
        if frame.head.kind == Kind::Cast {
            return self.refuse_cast(frame, closed);
        }
        self.discard(frame);
        let head = &frame.head;
        if self.events.is_on() {
            let (from, mut why) = (head.from, *head);
            why.flags = closed.code;
            let len = frame.tail.len();
            let subject = self.events.subject(head, frame.meta());
            self.record(EventKind::Refused, head.to.port, &why, from, len, subject);
        }
        match head.kind {
            Kind::Call | Kind::Post | Kind::Spawn if head.expects_reply() => {
                let mut back = Head::new(Kind::Fault, head.from, head.to);
                back.flags = closed.code;
                back.rank = head.rank;
                self.dispatch(Frame { head: back, tail: closed.detail.clone() });
            }
            Kind::Call | Kind::Post => {
                let sender = Address { proc: head.from.proc, port: PortId::NONE };
                let mut back = Head::new(Kind::Credit, sender, head.to);
                back.rank = 1;
                self.dispatch(Frame::bare(back));
            }
            _ => {}
        }
    }
}

/// Returns the first four bytes, or the bytes of the largest number if there are fewer.
fn first_u32(bytes: &[u8]) -> [u8; 4] {
    bytes.first_chunk::<4>().copied().unwrap_or([0xFF; 4])
}
