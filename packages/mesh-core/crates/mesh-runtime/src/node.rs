//! One process of a job as a pure state machine.
//!
//! Everything that happens to a process comes in through a method here (a frame from a link, a
//! call from the program, a death, the passing of time); everything it wants done comes out as an
//! [`Effect`]. There is no IO, no clock and no lock inside, so the simulator runs a thousand of
//! these in one thread, and the engine runs one behind a mutex.
//!
//! # Layout
//! - `peer`: links to other processes, and what is sent again over the next one;
//! - `greeting`: what is said when a link opens;
//! - `death`: what deaths mean to the rest;
//! - `call`: calls and their answers;
//! - `cast`: one frame for the ranks of a host, and one answer of them;
//! - `relay`: frames that go to many hosts through one another;
//! - `patience`: how long what is collected waits for the rest;
//! - `bulk`: long frames in pieces;
//! - `landing`: long messages from other hosts that are kept in shared memory;
//! - `holds`: what messages hold of shared memory;
//! - `pulse`: whether other hosts are alive;
//! - `epoch`: machines that take the place of dead ones, and dead ones that come back;
//! - `trim`: memory that is not needed;
//! - `unborn`: messages that are faster than the spawn of their receiver;
//! - this file: ports, delivery, time.

mod bulk;
mod call;
mod cast;
mod death;
mod epoch;
mod greeting;
mod holds;
mod landing;
mod patience;
mod peer;
mod pulse;
mod relay;
mod trim;
mod unborn;

pub use bulk::BulkId;
pub use call::{Answer, CallSpec, Progress, SendError, Target};
pub use epoch::{EPOCH_MAX, epoch_of, first_life};
pub use greeting::gone;
pub use holds::PORT_MARK;
pub use landing::Landed;
pub use peer::LinkId;
pub use pulse::HostWatch;

use crate::events::{Event, EventKind, Events, Subject};
use crate::fault;
use crate::hash::FastMap;
use crate::mailbox::{Closed, Mailbox};
use bulk::Bulks;
use bytes::Bytes;
use call::PendingCall;
use cast::Gathers;
use mesh_wire::frame::{Frame, HOPS_MAX, Head, Kind};
use mesh_wire::id::{Address, HostId, JobId, PortId, ProcId};
use peer::{Link, Peer};
use pulse::Pulse;
use relay::Relays;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use unborn::{Unborn, count_of_job, first_count, maker, maker_of, numbered};

/// Who this process is, and its limits.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The process.
    pub me: ProcId,
    /// How many processes had this slot before.
    pub incarnation: u32,
    /// The job; frames of another are refused.
    pub job: JobId,
    /// Proof of belonging to the job, shown in the handshake.
    pub token: [u8; 32],
    /// Bytes that may wait for a peer before senders are held back.
    pub backlog_bytes_max: usize,
}

/// What the driver of a node has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Write the frame to the link.
    Transmit {
        /// The link.
        link: LinkId,
        /// The frame, numbered.
        frame: Frame,
    },
    /// Open a link to the process and report [`Node::connected`] or [`Node::connect_failed`].
    Connect {
        /// The process to reach.
        peer: ProcId,
        /// How long to wait first.
        after: Duration,
    },
    /// Close the link; it is not reported back.
    Close {
        /// The link.
        link: LinkId,
    },
    /// Something came in on this port: wake who waits on it.
    Ready(PortId),
    /// Credit came in: wake who waits to send.
    Credited,
    /// A reader has given a part of one of our segments back.
    Released {
        /// Who read it.
        reader: ProcId,
        /// The segment.
        segment: u32,
        /// Which use of it.
        generation: u32,
    },
    /// A message has handed back a part of one of our segments, which this process now holds
    /// itself until it is [`Effect::Released`]. To be done before anyone can take the message, and
    /// before the effects that follow.
    Held {
        /// The segment.
        segment: u32,
        /// Which use of it.
        generation: u32,
    },
    /// Keep bytes of a message in shared memory, and once all of it are there, report
    /// [`Node::landed`]. Asked for only after [`Node::set_lands`].
    Land {
        /// The message.
        id: BulkId,
        /// Bytes of it that are to be kept.
        len: usize,
        /// Where these belong.
        at: usize,
        /// Some of them.
        bytes: Bytes,
    },
    /// No more of such a message will come: its sender is dead.
    Forsake(BulkId),
    /// A process is dead: what it held of ours is free, what we hold of it stays readable.
    Buried(ProcId),
    /// A host has been silent for too long: receive all pending input, and report what the
    /// transport knows of it by [`Node::probed`].
    Probe(HostId),
}

/// A receiver in this process.
#[derive(Debug)]
enum Port {
    /// An actor or a channel.
    Mailbox(Mailbox),
    /// The answers of a call.
    Call(PendingCall),
}

/// One process of a job.
#[derive(Debug)]
pub struct Node {
    config: NodeConfig,
    /// Boxed, because most processes have few and a map has room for more.
    peers: FastMap<ProcId, Box<Peer>>,
    links: FastMap<LinkId, Link>,
    next_link: u32,
    ports: FastMap<PortId, Port>,
    next_port: u64,
    unborn: Unborn,
    /// Whether spawns may take any time to come, because the process is being set up.
    holds_early: bool,
    /// Ports whose receiver is to be replaced by one of the same number and is still there, with
    /// how often.
    respawning: FastMap<PortId, u32>,
    deadlines: BinaryHeap<Reverse<(Duration, PortId)>>,
    pulse: Pulse,
    /// This host was taken for dead by another one of the job.
    is_fenced: bool,
    gathers: Gathers,
    relays: Relays,
    bulks: Bulks,
    effects: VecDeque<Effect>,
    events: Events,
    now: Duration,
}

impl Node {
    /// A process without links. Its agent mailbox is open.
    pub fn new(config: NodeConfig) -> Self {
        let incarnation = config.incarnation;
        let mut node = Self {
            config,
            peers: FastMap::default(),
            links: FastMap::default(),
            next_link: 0,
            ports: FastMap::default(),
            // Late answers to the process that had the slot before must find nobody here.
            next_port: first_count(incarnation),
            unborn: Unborn::default(),
            holds_early: false,
            respawning: FastMap::default(),
            deadlines: BinaryHeap::new(),
            pulse: Pulse::default(),
            is_fenced: false,
            gathers: Gathers::default(),
            relays: Relays::default(),
            bulks: Bulks::default(),
            effects: VecDeque::new(),
            events: Events::default(),
            now: Duration::ZERO,
        };
        node.open_mailbox(PortId::AGENT, u32::MAX);
        node
    }

    /// The process.
    pub fn me(&self) -> ProcId {
        self.config.me
    }

    /// What has to be done, oldest first. The driver empties this after each call.
    pub fn effects(&mut self) -> std::collections::vec_deque::Drain<'_, Effect> {
        self.effects.drain(..)
    }

    /// Whether there is anything to do.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// A port number that no one in this job has had: the process is part of it.
    ///
    /// Actor meshes use one number on all their processes, so a number carries its maker.
    pub fn new_port(&mut self) -> PortId {
        self.next_port += 1;
        numbered(self.config.me, self.next_port)
    }

    /// Leaves out the numbers of the `job_count` jobs that this process was part of before, so that
    /// what is left of those meets nothing of this one.
    pub fn skip_ports(&mut self, job_count: u32) {
        self.next_port += count_of_job(job_count);
    }

    /// Ends everything in this process that waits for something: no more will come.
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

    /// Opens a mailbox whose senders may each have `window` messages outstanding.
    ///
    /// A mailbox that is there already is opened again with what it holds.
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
        for frame in self.unborn.take(port) {
            self.deliver(frame);
        }
    }

    /// Hears from the maker of a port number that of all that it made up to there, only these are
    /// still to be spawned here: what is sent to the others is answered with a fault at once.
    pub fn expect_only(&mut self, up_to: PortId, coming: Vec<PortId>) {
        let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
        for frame in self.unborn.settle(up_to, coming) {
            if self.respawning.contains_key(&frame.head.to.port) {
                self.unborn.keep(frame);
            } else {
                self.refuse(&frame, &closed);
            }
        }
    }

    /// Closes a mailbox: what is queued and what still comes is answered with `closed`.
    ///
    /// The port stays known, so that late callers hear the reason.
    pub fn close_mailbox(&mut self, port: PortId, closed: Closed) {
        let Some(Port::Mailbox(mailbox)) = self.ports.get_mut(&port) else { return };
        let queued = mailbox.close(closed.clone());
        for frame in queued {
            self.refuse(&frame, &closed);
        }
        self.effects.push_back(Effect::Ready(port));
    }

    /// Forgets a port: what is queued and what still comes is answered with [`fault::STOPPED`].
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
            Some(Port::Call(call)) => self.discard_answers(&call),
            None => {}
        }
    }

    /// Takes up to `max` messages out of a mailbox, oldest first.
    ///
    /// # Errors
    /// The reason when the mailbox is closed and empty, or [`fault::STOPPED`] when there is none.
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

    /// Tells a sender that messages of its have left a mailbox here.
    fn give_credit(&mut self, sender: ProcId, port: PortId, count: u32) {
        let to = Address { proc: sender, port: PortId::NONE };
        let mut head = Head::new(Kind::Credit, to, Address { proc: self.config.me, port });
        head.rank = count;
        self.dispatch(Frame::bare(head));
    }

    /// Whether a call that came from there waits in a mailbox.
    pub fn has_queued(&self, port: PortId, from: Address) -> bool {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => mailbox.has_from(from),
            _ => false,
        }
    }

    /// Takes back the queued calls of a process that is gone; its one-way messages stay.
    fn withdraw_calls(&mut self, from: ProcId) {
        let mut withdrawn = Vec::new();
        for port in self.ports.values_mut() {
            if let Port::Mailbox(mailbox) = port {
                withdrawn.extend(mailbox.withdraw_all(from));
            }
        }
        withdrawn.iter().for_each(|frame| self.discard(frame));
    }

    /// Messages queued in a mailbox.
    pub fn mailbox_len(&self, port: PortId) -> usize {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => mailbox.len(),
            _ => 0,
        }
    }

    /// Whether a consumer of the port would find something: a message, answers, an end.
    pub fn is_ready(&self, port: PortId) -> bool {
        match self.ports.get(&port) {
            Some(Port::Mailbox(mailbox)) => !mailbox.is_empty() || mailbox.closed().is_some(),
            Some(Port::Call(call)) => call.is_ready(),
            None => true,
        }
    }

    /// What happens here, for whoever subscribes.
    pub fn events(&mut self) -> &mut Events {
        &mut self.events
    }

    /// Says what time it is, for the events that follow.
    pub fn set_now(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Records something about a message; `other` is the other process and the port of the answers.
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

    /// Records something about another process.
    fn record_peer(&mut self, kind: EventKind, peer: ProcId) {
        if self.events.is_on() {
            let (at, port, call) = (self.now, PortId::NONE, PortId::NONE);
            let (rank, code, len, subject) = (0, 0, 0, Subject::default());
            self.events.push(Event { at, kind, port, peer, call, rank, code, len, subject });
        }
    }

    /// Lets time pass: calls whose deadline is over fail.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(&Reverse((due, port))) = self.deadlines.peek() {
            if due > now {
                break;
            }
            self.deadlines.pop();
            self.expire(port);
        }
        self.listen(now);
        self.time_collected(now);
        self.time_bags(now);
        let closed = Closed { code: fault::STOPPED, detail: Bytes::new() };
        for frame in self.unborn.expire(now) {
            if self.holds_early || self.respawning.contains_key(&frame.head.to.port) {
                self.unborn.keep(frame);
            } else {
                self.refuse(&frame, &closed);
            }
        }
    }

    /// Keeps messages that have come before the spawn of their receiver for as long as this is on;
    /// once it is off, they wait for as long as if they had just come.
    pub fn hold_early(&mut self, is_on: bool) {
        self.holds_early = is_on;
        if !is_on {
            self.unborn.restart();
        }
    }

    /// Whether [`Node::advance`] is to be called soon, because something waits since it was.
    pub fn is_untimed(&self) -> bool {
        self.unborn.is_untimed() || self.gathers.is_untimed() || self.relays.is_untimed()
    }

    /// When [`Node::advance`] has something to do next.
    pub fn next_deadline(&mut self) -> Option<Duration> {
        let waits = [self.unborn.next_due(), self.gathers.next_due(), self.relays.next_due()];
        let others = [self.next_timeout(), self.pulse.next_look()];
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

    /// Sends a frame to where its head says, which may be here.
    fn dispatch(&mut self, mut frame: Frame) {
        if frame.head.kind == Kind::Died {
            self.pulse.told(&frame);
        }
        if frame.head.to.proc == self.config.me {
            return self.deliver(frame);
        }
        if frame.head.to.proc.host != self.config.me.host
            && matches!(frame.head.kind, Kind::Answer | Kind::Fault)
        {
            let Some(alone) = self.collect_answer(frame) else { return };
            frame = alone;
        } else if frame.head.kind == Kind::Cancel {
            self.uncollect(&frame);
        }
        if frame.head.hops < HOPS_MAX {
            frame.head.hops += 1;
            self.transmit(frame);
        }
    }

    /// Handles a frame for this process.
    fn deliver(&mut self, frame: Frame) {
        match frame.head.kind {
            Kind::Call | Kind::Post => self.deliver_message(frame),
            Kind::Spawn => self.deliver_spawn(frame),
            Kind::Answer | Kind::Fault => self.deliver_answer(frame),
            Kind::Cancel => self.deliver_cancel(frame),
            Kind::Credit => self.credited(frame.head.from, frame.head.rank),
            Kind::Watch => self.deliver_watch(&frame),
            Kind::Died => self.deliver_died(&frame),
            // The engine has taken the descriptor out; there is nothing left to do.
            Kind::Segment => {}
            Kind::Release => self.effects.push_back(Effect::Released {
                reader: frame.head.from.proc,
                segment: frame.head.rank,
                generation: u32::from_le_bytes(first_u32(&frame.tail)),
            }),
            Kind::Cast => self.deliver_cast(&frame),
            Kind::Answers => self.deliver_answers(&frame),
            // Handshake, acks and what is on its way never get here.
            Kind::Hello | Kind::Welcome | Kind::Ack | Kind::Ping => {}
            Kind::Attach | Kind::Attached | Kind::Relay | Kind::Bag | Kind::Piece => {}
        }
    }

    fn deliver_message(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        if self.events.is_on() {
            let (from, len) = (frame.head.from, frame.tail.len());
            let subject = self.events.subject(&frame.head, frame.meta());
            self.record(EventKind::Received, port, &frame.head, from, len, subject);
        }
        if self.respawning.contains_key(&port) {
            return self.unborn.keep(frame);
        }
        let may_come = self.may_come(port);
        let refused = match self.ports.get_mut(&port) {
            Some(Port::Mailbox(mailbox)) => match mailbox.push(frame) {
                Ok(()) => {
                    self.effects.push_back(Effect::Ready(port));
                    return;
                }
                Err(refused) => refused,
            },
            None if may_come => return self.unborn.keep(frame),
            _ => (frame, Closed { code: fault::STOPPED, detail: Bytes::new() }),
        };
        self.refuse(&refused.0, &refused.1);
    }

    /// Whether an actor may yet be spawned on the port: one whose number another process has made.
    /// Channels have numbers of their own process.
    fn may_come(&self, port: PortId) -> bool {
        port.0 >= PortId::FIRST_FREE
            && maker_of(port) != maker(self.config.me)
            && !self.unborn.is_settled(port)
    }

    /// Opens the mailbox of a new actor at once, so that calls sent right behind find it, and
    /// leaves the rest to the agent. Where an actor is to be started anew, what comes from now on
    /// is for the new one: it waits until the agent opens the mailbox again.
    fn deliver_spawn(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        if self.ports.contains_key(&port) {
            *self.respawning.entry(port).or_default() += 1;
        } else {
            self.open_mailbox(port, u32::from_le_bytes(first_u32(frame.meta())));
        }
        self.tell_agent(frame);
    }

    /// A call that is queued is taken back; one that runs is for the agent to end.
    fn deliver_cancel(&mut self, frame: Frame) {
        let unborn = self.unborn.withdraw(frame.head.to.port, frame.head.from);
        if !unborn.is_empty() {
            return unborn.iter().for_each(|withdrawn| self.discard(withdrawn));
        }
        let Some(Port::Mailbox(mailbox)) = self.ports.get_mut(&frame.head.to.port) else { return };
        match mailbox.withdraw(frame.head.from) {
            Some(withdrawn) => self.discard(&withdrawn),
            None => self.tell_agent(frame),
        }
    }

    /// Puts a frame that is about this process into its agent's mailbox.
    pub(super) fn tell_agent(&mut self, frame: Frame) {
        if let Some(Port::Mailbox(agent)) = self.ports.get_mut(&PortId::AGENT)
            && agent.push(frame).is_ok()
        {
            self.effects.push_back(Effect::Ready(PortId::AGENT));
        }
    }

    /// Answers a message that cannot be delivered, or gives its credit back. The sender may be
    /// anywhere.
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
            Kind::Call | Kind::Post | Kind::Spawn if head.wants_answer() => {
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

/// The first four bytes, or the largest number when there are fewer.
fn first_u32(bytes: &[u8]) -> [u8; 4] {
    bytes.first_chunk::<4>().copied().unwrap_or([0xFF; 4])
}
