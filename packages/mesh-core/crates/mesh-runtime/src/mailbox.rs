//! The queue of messages for one receiver, and the credit that bounds it.
//!
//! A sender counts the messages that it has sent to a mailbox and that are not known to have left
//! it. This number never exceeds the window. A reply returns the credit of its call; the credit of
//! one-way messages is returned in batches. The length of a mailbox is therefore bounded by window
//! times senders without any rejected message, and backpressure applies at the sender.

use crate::hash::FastMap;
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{Address, ProcId};
use std::collections::VecDeque;

/// The reason why a receiver accepts no more messages; callers get `code` and `detail`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// One of the codes in [`crate::fault`].
    pub code: u8,
    /// The details from the layer above.
    pub detail: bytes::Bytes,
}

/// One receiver: the mailbox of an actor or a channel.
#[derive(Debug)]
pub struct Mailbox {
    queue: VecDeque<Frame>,
    /// Credit per sender, which is the number of messages that a sender may have outstanding.
    window: u32,
    /// Number of one-way messages taken since the sender last got credit.
    owed: FastMap<ProcId, u32>,
    closed: Option<Box<Closed>>,
}

impl Mailbox {
    /// Creates an open mailbox.
    pub fn new(window: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            window: window.max(1),
            owed: FastMap::default(),
            closed: None,
        }
    }

    /// Adds a message, or returns it if the mailbox is closed.
    ///
    /// # Errors
    /// The message and the reason.
    #[expect(clippy::result_large_err, reason = "the message is handed back as it came")]
    pub fn push(&mut self, frame: Frame) -> Result<(), (Frame, Closed)> {
        match &self.closed {
            Some(closed) => Err((frame, Closed::clone(closed))),
            None => {
                self.queue.push_back(frame);
                Ok(())
            }
        }
    }

    /// Takes the oldest message, and the credit that must now be returned to its sender.
    pub fn pop(&mut self) -> Option<(Frame, Option<(ProcId, u32)>)> {
        let frame = self.queue.pop_front()?;
        let credit = self.taken(&frame);
        Some((frame, credit))
    }

    /// Whether a call from that address is queued.
    pub fn has_from(&self, from: Address) -> bool {
        self.queue.iter().any(|frame| frame.head.from == from)
    }

    /// Takes back a queued call whose caller no longer waits.
    pub fn withdraw(&mut self, from: Address) -> Option<Frame> {
        let at = self.queue.iter().position(|frame| frame.head.from == from)?;
        self.queue.remove(at)
    }

    /// Takes back all queued calls of a process that no longer waits for any of them.
    pub fn withdraw_all(&mut self, from: ProcId) -> VecDeque<Frame> {
        let is_call = |frame: &Frame| frame.head.from.proc == from && frame.head.expects_reply();
        let (calls, rest) = self.queue.drain(..).partition(is_call);
        self.queue = rest;
        calls
    }

    /// Closes the mailbox and returns the queued messages.
    pub fn close(&mut self, closed: Closed) -> VecDeque<Frame> {
        self.closed.get_or_insert_with(|| Box::new(closed));
        std::mem::take(&mut self.queue)
    }

    /// Takes the credit that was not returned to senders yet, before the mailbox is removed.
    pub fn take_owed(&mut self) -> Vec<(ProcId, u32)> {
        let mut owed: Vec<_> = self.owed.drain().filter(|(_, count)| *count > 0).collect();
        owed.sort_unstable();
        owed
    }

    /// Reopens a closed mailbox, for a restarted actor.
    pub fn reopen(&mut self) {
        self.closed = None;
    }

    /// Returns the number of queued messages.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no message is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns why the mailbox accepts no more messages, if it is closed.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_deref()
    }

    /// Frees memory that an empty queue does not need.
    pub fn trim(&mut self) {
        self.queue.shrink_to_fit();
    }

    fn taken(&mut self, frame: &Frame) -> Option<(ProcId, u32)> {
        let is_one_way =
            matches!(frame.head.kind, Kind::Call | Kind::Post) && !frame.head.expects_reply();
        if !is_one_way {
            return None;
        }
        let sender = frame.head.from.proc;
        let owed = self.owed.entry(sender).or_default();
        *owed += 1;
        if *owed < self.window.div_ceil(2) {
            return None;
        }
        Some((sender, std::mem::take(owed)))
    }
}
