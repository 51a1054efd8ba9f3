//! The session with one peer, independent of the connections that carry it.
//!
//! Frames are numbered, kept until the peer has acknowledged them, and retransmitted on the next
//! connection if one breaks. A receiver accepts each number once and in order, so a break neither
//! loses nor duplicates nor reorders frames while both processes live.
//!
//! Frames between hosts may also travel through a third host, so one frame may overtake another.
//! Early frames are buffered until the missing ones arrive.

use mesh_wire::frame::{Frame, Head};
use std::collections::{BTreeMap, VecDeque};

/// An ack is sent separately after this many frames without a frame that could carry it.
const ACK_EVERY_FRAMES: u64 = 64;
/// An ack is sent separately after this many bytes without a frame that could carry it.
const ACK_EVERY_BYTES: usize = 256 << 10;

/// Bytes and frames of early frames that may be buffered; the peer retransmits any others.
const EARLY_BYTES_MAX: usize = 64 << 20;
const EARLY_FRAMES_MAX: usize = 4096;

/// How to proceed with a received frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    /// Next in order: handle it.
    New,
    /// Received before: drop it.
    Duplicate,
    /// A preceding frame is missing.
    Gap,
}

/// Sequence numbers, acknowledgement and retransmission for one incarnation of one peer.
#[derive(Debug, Default)]
pub struct Session {
    sent: u64,
    received: u64,
    /// The value of `received` in the last ack to the peer.
    last_ack: u64,
    bytes_since_ack: usize,
    /// Frames that were sent and are not acknowledged, oldest first.
    ///
    /// The node bounds them by `unacked_bytes`.
    unacked: VecDeque<Frame>,
    unacked_bytes: usize,
    /// Boxed because few frames ever overtake others.
    early: Option<Box<EarlyFrames>>,
}

/// Frames that have overtaken others.
#[derive(Debug, Default)]
struct EarlyFrames {
    frames: BTreeMap<u64, Frame>,
    bytes: usize,
}

impl Session {
    /// Assigns a sequence number to the frame and keeps it for retransmission; adds the ack.
    pub fn stamp(&mut self, mut frame: Frame) -> Frame {
        if frame.head.kind.is_sequenced() {
            frame = self.number(frame);
        }
        frame.head.ack = self.received;
        self.last_ack = self.received;
        self.bytes_since_ack = 0;
        frame
    }

    /// Assigns a sequence number to a sequenced frame and keeps it, but adds no ack.
    pub fn number(&mut self, mut frame: Frame) -> Frame {
        self.sent += 1;
        frame.head.seq = self.sent;
        self.unacked_bytes += frame.tail.len();
        self.unacked.push_back(frame.clone());
        frame
    }

    /// Buffers an early frame.
    ///
    /// If the buffer is full, the frame is dropped, and the peer retransmits it.
    pub fn buffer(&mut self, frame: Frame) {
        let len = frame.tail.len();
        let early = self.early.get_or_insert_default();
        let has_capacity =
            early.bytes + len <= EARLY_BYTES_MAX && early.frames.len() < EARLY_FRAMES_MAX;
        if has_capacity && early.frames.insert(frame.head.seq, frame).is_none() {
            early.bytes += len;
        }
    }

    /// Takes the next frame in order, if it was buffered.
    pub fn next_buffered(&mut self) -> Option<Frame> {
        let early = self.early.as_mut()?;
        while let Some(first) = early.frames.first_entry() {
            if *first.key() > self.received + 1 {
                return None;
            }
            let frame = first.remove();
            early.bytes -= frame.tail.len();
            if frame.head.seq == self.received + 1 {
                return Some(frame);
            }
        }
        self.early = None;
        None
    }

    /// Returns the last frame that the peer is known to have.
    pub fn acked(&self) -> u64 {
        self.sent - self.unacked.len() as u64
    }

    /// Registers a received frame, and decides how to proceed with it.
    pub fn accept(&mut self, head: &Head, tail_len: usize) -> Acceptance {
        self.acknowledged(head.ack);
        if head.seq == 0 {
            return Acceptance::New;
        }
        if head.seq <= self.received {
            return Acceptance::Duplicate;
        }
        if head.seq != self.received + 1 {
            return Acceptance::Gap;
        }
        self.received = head.seq;
        self.bytes_since_ack += tail_len;
        Acceptance::New
    }

    /// Whether an ack should be sent now.
    pub fn is_ack_due(&self) -> bool {
        self.received - self.last_ack >= ACK_EVERY_FRAMES || self.bytes_since_ack >= ACK_EVERY_BYTES
    }

    /// Returns the sequence number of the last received frame, for the handshake of the next
    /// connection.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Removes the frames that the peer has received and returns the others, to be sent over a new
    /// connection.
    pub fn resume(&mut self, peer_received: u64) -> Vec<Frame> {
        self.acknowledged(peer_received);
        self.last_ack = self.received;
        let ack = self.received;
        let again = self.unacked.iter().cloned();
        again.map(|frame| Frame { head: Head { ack, ..frame.head }, ..frame }).collect()
    }

    /// Returns the number of bytes that wait for an ack.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// Whether frames wait for an ack.
    pub fn has_unacked(&self) -> bool {
        !self.unacked.is_empty()
    }

    /// Returns the frames that wait for an ack, oldest first.
    pub fn unacked(&self) -> impl Iterator<Item = &Frame> {
        self.unacked.iter()
    }

    /// Frees memory that the unacknowledged frames do not need.
    pub fn trim(&mut self) {
        self.unacked.shrink_to_fit();
    }

    fn acknowledged(&mut self, up_to: u64) {
        while self.unacked.front().is_some_and(|frame| frame.head.seq <= up_to) {
            let frame = self.unacked.pop_front().expect("front was just seen");
            self.unacked_bytes -= frame.tail.len();
        }
    }
}
