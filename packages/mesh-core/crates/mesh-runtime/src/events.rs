//! What happens in a process, for whoever subscribes.
//!
//! Nothing is kept while nobody does. A ring has a bound: when its reader is slow the oldest events
//! are dropped and counted, and never a message.

use mesh_wire::id::{PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

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

    /// Takes up to `max` events, oldest first, and the number of those that were dropped before.
    pub fn take(&mut self, max: usize) -> (Vec<Event>, u64) {
        let count = self.ring.len().min(max);
        (self.ring.drain(..count).collect(), std::mem::take(&mut self.dropped))
    }
}
