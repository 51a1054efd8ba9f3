//! What happens in a process, for whoever subscribes.
//!
//! Nothing is kept while nobody does. A ring has a bound: when its reader is slow the oldest events
//! are dropped and counted, and never a message.

use mesh_wire::id::{PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of the record of one event.
pub const RECORD_LEN: usize = 48;

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
}

impl Event {
    /// Writes the event down as `docs/protocol/events.md` says.
    pub fn record(&self) -> [u8; RECORD_LEN] {
        // In 64 bits a process can count nanoseconds for 584 years.
        let at = u64::try_from(self.at.as_nanos()).unwrap_or(u64::MAX);
        let len = self.len as u64;
        let mut record = [0; RECORD_LEN];
        for (place, word) in
            [at, self.port.0, self.peer.to_u64(), self.call.0, len].into_iter().enumerate()
        {
            record[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        record[40..44].copy_from_slice(&self.rank.to_le_bytes());
        record[44] = self.kind as u8;
        record[45] = self.code;
        record
    }
}

/// Events that wait for their reader.
#[derive(Debug, Default)]
pub struct EventRing {
    ring: VecDeque<Event>,
    /// 0 while nobody subscribes.
    len_max: usize,
    dropped: u64,
}

impl EventRing {
    /// Begins to record, or goes on with another bound.
    pub fn start(&mut self, len_max: usize) {
        self.len_max = len_max;
    }

    /// Ends recording and forgets what was not read.
    pub fn stop(&mut self) {
        *self = Self::default();
    }

    /// Whether anybody subscribes.
    pub fn is_on(&self) -> bool {
        self.len_max > 0
    }

    /// Keeps an event, at the cost of the oldest one when the ring is full.
    pub fn push(&mut self, event: Event) {
        if self.ring.len() >= self.len_max {
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
