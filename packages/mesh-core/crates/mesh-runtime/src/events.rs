//! What happens in a process, for whoever subscribes.
//!
//! Nothing is kept while nobody does. A ring has a bound: when its reader is slow the oldest events
//! are dropped and counted, and never a message.

mod endpoints;

use crate::origin::Meta;
use endpoints::Endpoints;
use mesh_wire::frame::{Head, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

pub use endpoints::{NAME_LEN_MAX, NAMES_MAX};

/// Bytes of the record of one event.
pub const RECORD_LEN: usize = 64;

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// A message was sent to one receiver.
    Sent = 1,
    /// A message was put into a mailbox here.
    Received = 2,
    /// A message was taken out of a mailbox to be served.
    Taken = 3,
    /// A message was answered.
    Answered = 4,
    /// An answer has come in.
    Completed = 5,
    /// A message could not be delivered here.
    Refused = 6,
    /// A caller has given up.
    Cancelled = 7,
    /// A link to a process is up.
    LinkUp = 8,
    /// A link to a process is gone.
    LinkDown = 9,
    /// A process is known to be dead.
    Died = 10,
}

/// Where a message comes from and what it is for, as the events of it say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// The actor that has sent it; none outside of actors, or when that is not known.
    pub sender: PortId,
    /// The span that it was sent in; 0 for none.
    pub span: u64,
    /// The endpoint, by its number in this process; 0 for none.
    pub endpoint: u16,
}

/// One thing that has happened. What a kind does not have is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// When, since the process started.
    pub at: Duration,
    /// What.
    pub kind: EventKind,
    /// The actor or channel that the message is for.
    pub port: PortId,
    /// The other process.
    pub peer: ProcId,
    /// The port of the answers: the same in all events of a call.
    pub call: PortId,
    /// The rank called or answering.
    pub rank: u32,
    /// For answers: 0, or why there is no value.
    pub code: u8,
    /// Bytes of the message without its shared parts.
    pub len: usize,
    /// Of messages: where it comes from and what it is for.
    pub subject: Subject,
}

impl Event {
    /// Writes the event down as `docs/protocol/events.md` says.
    pub fn record(&self) -> [u8; RECORD_LEN] {
        // In 64 bits a process can count nanoseconds for 584 years.
        let at = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX);
        let (len, subject) = (self.len as u64, &self.subject);
        let mut record = [0; RECORD_LEN];
        let words = [at, self.port.0, self.peer.to_u64(), self.call.0, len];
        for (place, word) in words.into_iter().enumerate() {
            record[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        record[40..44].copy_from_slice(&self.rank.to_le_bytes());
        record[44] = self.kind as u8;
        record[45] = self.code;
        record[46..48].copy_from_slice(&subject.endpoint.to_le_bytes());
        record[48..56].copy_from_slice(&subject.sender.0.to_le_bytes());
        record[56..64].copy_from_slice(&subject.span.to_le_bytes());
        record
    }
}

/// Events that wait for their reader.
#[derive(Debug, Default)]
pub struct EventRing {
    ring: VecDeque<Event>,
    /// 0 while nobody subscribes.
    len_max: usize,
    /// Nobody subscribes yet; who will is expected.
    is_early: bool,
    dropped: u64,
    endpoints: Endpoints,
}

impl EventRing {
    /// Begins to record, or goes on with another bound.
    pub fn start(&mut self, len_max: usize) {
        (self.len_max, self.is_early) = (len_max, false);
    }

    /// Begins to record for a subscriber that is expected. When none has come before the ring is
    /// full, recording ends.
    pub fn start_early(&mut self, len_max: usize) {
        if !self.is_on() {
            (self.len_max, self.is_early) = (len_max, true);
        }
    }

    /// Gives endpoints the numbers that they have in this process, from 1 on, before anything is
    /// recorded: it may have been part of other jobs.
    pub fn know_endpoints(&mut self, names: &[&[u8]]) {
        names.iter().for_each(|name| self.endpoints.append(name));
    }

    /// The names of endpoints, behind the first `known`.
    pub fn endpoints(&self, known: usize) -> impl Iterator<Item = &[u8]> {
        self.endpoints.names(known)
    }

    /// Ends recording and forgets what was not read; endpoints keep their numbers.
    pub fn stop(&mut self) {
        *self = Self { endpoints: std::mem::take(&mut self.endpoints), ..Self::default() };
    }

    /// Whether anybody subscribes, or is expected to.
    pub fn is_on(&self) -> bool {
        self.len_max > 0
    }

    /// Says of a message where it comes from and what it is for; nothing while nobody subscribes.
    pub fn subject(&mut self, head: &Head, meta: &[u8]) -> Subject {
        if !self.is_on() {
            return Subject::default();
        }
        let meta = Meta::read(head.kind, meta);
        let is_named = head.kind == Kind::Call && head.to.port.0 >= PortId::FIRST_FREE;
        let endpoint = if is_named { self.endpoints.number(meta.endpoint()) } else { 0 };
        Subject { sender: meta.sender(), span: meta.span(), endpoint }
    }

    /// Keeps an event, at the cost of the oldest one when the ring is full.
    pub fn push(&mut self, event: Event) {
        if self.ring.len() >= self.len_max {
            if self.is_early {
                return self.stop();
            }
            self.ring.pop_front();
            self.dropped += 1;
        }
        self.ring.push_back(event);
        assert!(self.ring.len() <= self.len_max, "the ring has a bound");
    }

    /// Takes up to `max` events, oldest first, as records, and the number of those that were
    /// dropped before.
    pub fn take(&mut self, max: usize) -> (Vec<u8>, u64) {
        let count = self.ring.len().min(max);
        let mut records = Vec::with_capacity(count * RECORD_LEN);
        for event in self.ring.drain(..count) {
            records.extend_from_slice(&event.record());
        }
        (records, std::mem::take(&mut self.dropped))
    }
}
