//! Events of a process, for subscribers.
//!
//! Nothing is recorded without a subscriber. Events wait in a bounded ring until the subscriber
//! takes them: if it is slow, the oldest events are dropped and counted, but never a message.
//! Alternatively, events are written to the files of a log as they happen, for readers in other
//! processes.

mod endpoints;
mod log;

use crate::origin::Meta;
use endpoints::Endpoints;
use mesh_wire::frame::{Head, Kind};
use mesh_wire::id::{PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

pub use endpoints::{NAME_LEN_MAX, NAMES_MAX};
pub use log::{EventLog, HEADER_LEN, LogFile, LogNames, LogState, WrittenFile};

/// Length in bytes of the record of one event.
pub const RECORD_LEN: usize = 64;

/// The kind of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum EventKind {
    /// A message was sent to one receiver.
    Sent = 1,
    /// A message was put into a mailbox here.
    Received = 2,
    /// A message was taken out of a mailbox to be served.
    Taken = 3,
    /// This process replied to a message.
    Answered = 4,
    /// A reply arrived.
    Completed = 5,
    /// A message could not be delivered here.
    Refused = 6,
    /// A caller cancelled its call.
    Cancelled = 7,
    /// A connection to a process is established.
    LinkUp = 8,
    /// A connection to a process is lost.
    LinkDown = 9,
    /// A process is known to be dead.
    Died = 10,
}

/// The sender, span and endpoint of a message, as recorded in its events.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Subject {
    /// The actor that sent the message; none outside of actors, or if the sender is unknown.
    pub sender: PortId,
    /// The span in which the message was sent; 0 for none.
    pub span: u64,
    /// The endpoint, by its number in this process; 0 for none.
    pub endpoint: u16,
}

/// An event. Fields that do not apply to its kind are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The time of the event since the process started.
    pub at: Duration,
    /// The kind of the event.
    pub kind: EventKind,
    /// The actor or channel that the message is for.
    pub port: PortId,
    /// The other process.
    pub peer: ProcId,
    /// The reply port, which is the same in all events of a call.
    pub call: PortId,
    /// The rank that was called or that replied.
    pub rank: u32,
    /// For replies: 0, or the fault code.
    pub code: u8,
    /// Length in bytes of the message without its shared parts.
    pub len: usize,
    /// For messages: sender, span and endpoint.
    pub subject: Subject,
}

impl Event {
    /// Encodes the event as specified in `docs/protocol/events.md`.
    pub fn record(&self) -> [u8; RECORD_LEN] {
        // 64 bits suffice for 584 years in nanoseconds.
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

/// Events that wait for their subscriber, and the logs to which events are written.
#[derive(Debug, Default)]
pub struct Events {
    ring: VecDeque<Event>,
    logs: Vec<EventLog>,
    /// Number of logs opened so far.
    log_count: u32,
    /// 0 without a subscriber.
    len_max: usize,
    /// No subscriber exists yet, but one is expected.
    is_early: bool,
    dropped: u64,
    endpoints: Endpoints,
}

impl Events {
    /// Starts to record, or continues with another bound.
    pub fn start(&mut self, len_max: usize) {
        (self.len_max, self.is_early) = (len_max, false);
    }

    /// Starts to record for an expected subscriber.
    ///
    /// If the ring is full before a subscriber has arrived, recording stops.
    pub fn start_early(&mut self, len_max: usize) {
        if !self.is_on() {
            (self.len_max, self.is_early) = (len_max, true);
        }
    }

    /// Opens a log that keeps up to `waiting_max` events while it has no file; returns its number.
    ///
    /// With `since_start` the log begins with the events that were recorded for an expected
    /// subscriber; otherwise those are discarded.
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

    /// Returns a log that is open.
    pub fn log(&mut self, number: u32) -> Option<&mut EventLog> {
        self.logs.iter_mut().find(|log| log.number() == number)
    }

    /// Closes a log and returns it.
    pub fn close_log(&mut self, number: u32) -> Option<EventLog> {
        let at = self.logs.iter().position(|log| log.number() == number)?;
        Some(self.logs.swap_remove(at))
    }

    /// Assigns numbers to known endpoints, from 1, before anything is recorded.
    ///
    /// The process may have been part of other jobs.
    pub fn register_endpoints(&mut self, names: &[&[u8]]) {
        names.iter().for_each(|name| self.endpoints.append(name));
    }

    /// Returns the names of endpoints after the first `known`.
    pub fn endpoints(&self, known: usize) -> impl Iterator<Item = &[u8]> {
        self.endpoints.names(known)
    }

    /// Stops recording for the subscriber and discards unread events; logs continue.
    pub fn stop(&mut self) {
        (self.ring, self.len_max) = (VecDeque::new(), 0);
        (self.is_early, self.dropped) = (false, 0);
    }

    /// Whether a subscriber exists or is expected.
    pub fn is_on(&self) -> bool {
        self.len_max > 0 || !self.logs.is_empty()
    }

    /// Returns sender, span and endpoint of a message; empty without a subscriber.
    pub fn subject(&mut self, head: &Head, meta: &[u8]) -> Subject {
        if !self.is_on() {
            return Subject::default();
        }
        let meta = Meta::read(head.kind, meta);
        let is_named = head.kind == Kind::Call && head.to.port.0 >= PortId::FIRST_FREE;
        let endpoint = if is_named { self.endpoint(meta.endpoint()) } else { 0 };
        Subject { sender: meta.sender(), span: meta.span(), endpoint }
    }

    /// Records an event, and drops the oldest one if the ring is full.
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

    /// Takes up to `max` events as records, oldest first, and the number of events dropped before.
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
