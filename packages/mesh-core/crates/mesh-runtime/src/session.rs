//! The state of the conversation with one peer, whatever links carry it.
//!
//! Frames are numbered, kept until the peer has acknowledged them, and sent again on the next link
//! when one breaks. A receiver takes each number once and in order, so a break loses nothing,
//! doubles nothing and reorders nothing while both processes live.
//!
//! Frames between hosts may also come by way of a third host, and then one overtakes another: what
//! is early is held back until what is missing has come.

use mesh_wire::frame::{Frame, Head};
use std::collections::{BTreeMap, VecDeque};

/// An ack travels alone after this many frames without one that could carry it.
const ACK_EVERY_FRAMES: u64 = 64;
/// An ack travels alone after this many bytes without a frame that could carry it.
const ACK_EVERY_BYTES: usize = 256 << 10;

/// Bytes and frames that may be held back; what is beyond is sent again.
const HELD_BYTES_MAX: usize = 64 << 20;
const HELD_FRAMES_MAX: usize = 4096;

/// What to do with a frame that came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acceptance {
    /// Next in order: handle it.
    New,
    /// Seen before: drop it.
    Duplicate,
    /// One before it is missing.
    Gap,
}

/// Numbering, acknowledgement and replay towards one incarnation of one peer.
#[derive(Debug, Default)]
pub struct Session {
    sent: u64,
    received: u64,
    /// The value of `received` that the peer was last told.
    told: u64,
    bytes_since_told: usize,
    /// Sent and not acknowledged, oldest first. The node bounds it by `unacked_bytes`.
    unacked: VecDeque<Frame>,
    unacked_bytes: usize,
    /// Boxed, because few frames ever overtake others.
    early: Option<Box<Early>>,
}

/// Frames that have overtaken others.
#[derive(Debug, Default)]
struct Early {
    frames: BTreeMap<u64, Frame>,
    bytes: usize,
}

impl Session {
    /// Gives the frame its number and keeps it for replay.
    pub fn stamp(&mut self, mut frame: Frame) -> Frame {
        if frame.head.kind.is_sequenced() {
            frame = self.number(frame);
        }
        frame.head.ack = self.received;
        self.told = self.received;
        self.bytes_since_told = 0;
        frame
    }

    /// Gives a sequenced frame its number and keeps it for replay; it carries no ack.
    pub fn number(&mut self, mut frame: Frame) -> Frame {
        self.sent += 1;
        frame.head.seq = self.sent;
        self.unacked_bytes += frame.tail.len();
        self.unacked.push_back(frame.clone());
        frame
    }

    /// Holds a frame back that came before its turn. One that has no room is lost, and sent again
    /// by the peer.
    pub fn hold(&mut self, frame: Frame) {
        let len = frame.tail.len();
        let early = self.early.get_or_insert_default();
        let has_room = early.bytes + len <= HELD_BYTES_MAX && early.frames.len() < HELD_FRAMES_MAX;
        if has_room && early.frames.insert(frame.head.seq, frame).is_none() {
            early.bytes += len;
        }
    }

    /// Takes the frame whose turn it is, if it was held back.
    pub fn next_held(&mut self) -> Option<Frame> {
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

    /// The last frame that the peer is known to have.
    pub fn acked(&self) -> u64 {
        self.sent - self.unacked.len() as u64
    }

    /// Takes note of a frame that came in.
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
        self.bytes_since_told += tail_len;
        Acceptance::New
    }

    /// Whether the peer should be told now what has arrived.
    pub fn owes_ack(&self) -> bool {
        self.received - self.told >= ACK_EVERY_FRAMES || self.bytes_since_told >= ACK_EVERY_BYTES
    }

    /// The last frame that arrived, for the handshake of the next link.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Forgets what the peer has and returns the rest, to be sent again on a new link.
    pub fn resume(&mut self, peer_received: u64) -> Vec<Frame> {
        self.acknowledged(peer_received);
        self.told = self.received;
        let ack = self.received;
        let again = self.unacked.iter().cloned();
        again.map(|frame| Frame { head: Head { ack, ..frame.head }, ..frame }).collect()
    }

    /// Bytes that wait for an ack.
    pub fn unacked_bytes(&self) -> usize {
        self.unacked_bytes
    }

    /// Frames that wait for an ack, oldest first.
    pub fn unacked(&self) -> impl Iterator<Item = &Frame> {
        self.unacked.iter()
    }

    /// Gives back memory that the unacknowledged frames do not need.
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
