//! Messages waiting for one receiver, and the credit that keeps them few.
//!
//! A sender counts what it has sent to a mailbox and what is known to have left it; the difference
//! never passes the window. An answer gives back the credit of its call; one-way messages are
//! given back in bulk. So a mailbox is bounded by window times senders without any refusal on the
//! way, and the sender is the one that waits.

use crate::hash::FastMap;
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{Address, ProcId};
use std::collections::VecDeque;

/// Why a receiver takes no more messages; `code` and `detail` are what callers get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// One of the codes in [`crate::fault`].
    pub code: u8,
    /// What the layer above knows of it.
    pub detail: bytes::Bytes,
}

/// One receiver: the mailbox of an actor or a channel.
#[derive(Debug)]
pub struct Mailbox {
    queue: VecDeque<Frame>,
    /// Credit per sender; also how much a sender may have outstanding.
    window: u32,
    /// One-way messages taken since the sender was last given credit.
    owed: FastMap<ProcId, u32>,
    closed: Option<Box<Closed>>,
}

impl Mailbox {
    /// An open mailbox.
    pub fn new(window: u32) -> Self {
        Self {
            queue: VecDeque::new(),
            window: window.max(1),
            owed: FastMap::default(),
            closed: None,
        }
    }

    /// Adds a message, or hands it back when the mailbox is closed.
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

    /// Takes the oldest message, and the credit that its sender must now be given.
    pub fn pop(&mut self) -> Option<(Frame, Option<(ProcId, u32)>)> {
        let frame = self.queue.pop_front()?;
        let credit = self.taken(&frame);
        Some((frame, credit))
    }

    /// Whether a call that came from there is queued.
    pub fn has_from(&self, from: Address) -> bool {
        self.queue.iter().any(|frame| frame.head.from == from)
    }

    /// Takes back a queued call whose caller no longer waits.
    pub fn withdraw(&mut self, from: Address) -> Option<Frame> {
        let at = self.queue.iter().position(|frame| frame.head.from == from)?;
        self.queue.remove(at)
    }

    /// Takes back all queued calls of a process that waits for none of them any more.
    pub fn withdraw_all(&mut self, from: ProcId) -> VecDeque<Frame> {
        let is_call = |frame: &Frame| frame.head.from.proc == from && frame.head.wants_answer();
        let (calls, rest) = self.queue.drain(..).partition(is_call);
        self.queue = rest;
        calls
    }

    /// Closes the mailbox and returns what was queued.
    pub fn close(&mut self, closed: Closed) -> VecDeque<Frame> {
        self.closed.get_or_insert_with(|| Box::new(closed));
        std::mem::take(&mut self.queue)
    }

    /// The credit that senders have not been given yet, when the mailbox goes away.
    pub fn take_owed(&mut self) -> Vec<(ProcId, u32)> {
        let mut owed: Vec<_> = self.owed.drain().filter(|(_, count)| *count > 0).collect();
        owed.sort_unstable();
        owed
    }

    /// Opens a closed mailbox again, for a restarted actor.
    pub fn reopen(&mut self) {
        self.closed = None;
    }

    /// Messages queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Why the mailbox takes no more messages, if so.
    pub fn closed(&self) -> Option<&Closed> {
        self.closed.as_deref()
    }

    /// Gives back memory that an empty queue does not need.
    pub fn trim(&mut self) {
        self.queue.shrink_to_fit();
    }

    fn taken(&mut self, frame: &Frame) -> Option<(ProcId, u32)> {
        let is_one_way =
            matches!(frame.head.kind, Kind::Call | Kind::Post) && !frame.head.wants_answer();
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
