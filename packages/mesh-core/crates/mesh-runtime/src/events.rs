//! What happens in a process, for whoever subscribes.
//!
//! Nothing is kept while nobody does. Events wait in a ring for who takes them; it has a bound:
//! when its reader is slow the oldest events are dropped and counted, and never a message. Or they
//! go into the files of a log as they happen, for readers in other processes.

mod endpoints;
mod log;

use crate::origin::Meta;
use endpoints::Endpoints;
use mesh_wire::frame::{Head, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

pub use endpoints::{NAME_LEN_MAX, NAMES_MAX};
pub use log::{EventLog, HEADER_LEN, LogFile, LogNames, LogState, Written};

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

/// Events that wait for their reader, and the logs that they are written to.
#[derive(Debug, Default)]
pub struct Events {
    ring: VecDeque<Event>,
    logs: Vec<EventLog>,
    /// How many logs there have been.
    log_count: u32,
    /// 0 while nobody subscribes.
    len_max: usize,
    /// Nobody subscribes yet; who will is expected.
    is_early: bool,
    dropped: u64,
    endpoints: Endpoints,
}

impl Events {
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

    /// Begins a log that keeps up to `waiting_max` events while it has no file; gives its number.
    ///
    /// With `since_start` it begins with what was kept for a subscriber that was expected; else
    /// that is forgotten.
    pub fn open_log(&mut self, waiting_max: usize, since_start: bool) -> u32 {
        let mut log = EventLog::new(self.log_count, waiting_max);
        self.log_count += 1;
        if self.is_early {
            let early = std::mem::take(&mut self.ring);
            self.stop();
            if since_start {
                early.iter().for_each(|event| log.write(&event.record()));
            }
        }
        log.note_endpoints(self.endpoints.len());
        let number = log.number();
        self.logs.push(log);
        number
    }

    /// A log that was opened, and not closed since.
    pub fn log(&mut self, number: u32) -> Option<&mut EventLog> {
        self.logs.iter_mut().find(|log| log.number() == number)
    }

    /// Ends a log.
    pub fn close_log(&mut self, number: u32) -> Option<EventLog> {
        let at = self.logs.iter().position(|log| log.number() == number)?;
        Some(self.logs.swap_remove(at))
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

    /// Ends what `start` began and forgets what was not read; logs go on.
    pub fn stop(&mut self) {
        (self.ring, self.len_max) = (VecDeque::new(), 0);
        (self.is_early, self.dropped) = (false, 0);
    }

    /// Whether anybody subscribes, or is expected to.
    pub fn is_on(&self) -> bool {
        self.len_max > 0 || !self.logs.is_empty()
    }

    /// Says of a message where it comes from and what it is for; nothing while nobody subscribes.
    pub fn subject(&mut self, head: &Head, meta: &[u8]) -> Subject {
        if !self.is_on() {
            return Subject::default();
        }
        let meta = Meta::read(head.kind, meta);
        let is_named = head.kind == Kind::Call && head.to.port.0 >= PortId::FIRST_FREE;
        let endpoint = if is_named { self.endpoint(meta.endpoint()) } else { 0 };
        Subject { sender: meta.sender(), span: meta.span(), endpoint }
    }

    /// Keeps an event, at the cost of the oldest one when the ring is full.
    pub fn push(&mut self, event: Event) {
        if !self.logs.is_empty() {
            let record = event.record();
            self.logs.iter_mut().for_each(|log| log.write(&record));
        }
        if self.len_max == 0 {
            return;
        }
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

    fn endpoint(&mut self, name: &[u8]) -> u16 {
        let known = self.endpoints.len();
        let number = self.endpoints.number(name);
        if self.endpoints.len() > known {
            let count = self.endpoints.len();
            self.logs.iter_mut().for_each(|log| log.note_endpoints(count));
        }
        number
    }
}
