//! One message on a link: a fixed head, then a tail of bytes.
//!
//! The tail is `meta` (what the receiver needs to route the call inside the process), then one
//! descriptor for each part that travels beside the body, then the body. The core reads the head
//! and the descriptors; meta and body belong to the layer above.

use crate::id::{Address, PortId, ProcId};
use bytes::Bytes;

/// Bytes of a head on the wire.
pub const HEAD_LEN: usize = 64;
/// Bytes of one part descriptor.
pub const PART_LEN: usize = 32;
/// The longest tail that a receiver accepts; a sender checks before it sends.
pub const TAIL_LEN_MAX: usize = 1 << 30;
/// How many parts a frame may carry.
pub const PART_COUNT_MAX: usize = 255;
/// How many times a frame may be forwarded.
pub const HOPS_MAX: u8 = 16;

/// What a frame is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a link: who speaks, for which job, with which proof.
    Hello = 1,
    /// Accepts a link.
    Welcome = 2,
    /// Acknowledges without carrying anything else. Not sequenced.
    Ack = 3,
    /// Asks for an ack. Not sequenced.
    Ping = 4,
    /// Asks a worker to serve a job. Not sequenced, and only ever the first frame of a connection.
    Attach = 5,
    /// Answers an attach.
    Attached = 6,
    /// A frame that many hosts get through one another; it is numbered by its origin for each of
    /// them, not by this link.
    Relay = 7,
    /// Frames of several hosts to one other, on their way up a tree; numbered by those hosts.
    Bag = 8,
    /// Calls an endpoint; answered when `from.port` is not [`PortId::NONE`].
    Call = 16,
    /// The value that a call returned.
    Answer = 17,
    /// Why a call has no value.
    Fault = 18,
    /// The caller no longer waits.
    Cancel = 19,
    /// Gives credit for messages that were taken from a mailbox.
    Credit = 20,
    /// A message to a channel.
    Post = 21,
    /// A piece of a frame that is too long to travel at once.
    Piece = 22,
    /// Creates an actor: opens its mailbox at once, starts it later.
    Spawn = 24,
    /// Asks to be told of the death of a process.
    Watch = 32,
    /// A process has died.
    Died = 33,
    /// Announces a shared segment; its descriptor rides beside the frame.
    Segment = 40,
    /// Gives a part of a shared segment back to its owner.
    Release = 41,
    /// A call to a region of a mesh, to be spread by the receiver.
    Cast = 48,
    /// Answers of many ranks, merged on the way.
    Answers = 49,
}

impl Kind {
    /// The kind with this number.
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Welcome,
            3 => Self::Ack,
            4 => Self::Ping,
            5 => Self::Attach,
            6 => Self::Attached,
            7 => Self::Relay,
            8 => Self::Bag,
            16 => Self::Call,
            17 => Self::Answer,
            18 => Self::Fault,
            19 => Self::Cancel,
            20 => Self::Credit,
            21 => Self::Post,
            22 => Self::Piece,
            24 => Self::Spawn,
            32 => Self::Watch,
            33 => Self::Died,
            40 => Self::Segment,
            41 => Self::Release,
            48 => Self::Cast,
            49 => Self::Answers,
            _ => return None,
        })
    }

    /// Whether the link counts, acknowledges and replays frames of this kind.
    pub const fn is_sequenced(self) -> bool {
        (self as u8) >= 16
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// What the frame is for.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// Forwardings so far; at [`HOPS_MAX`] the frame is dropped.
    pub hops: u8,
    /// Bytes of meta at the start of the tail.
    pub meta_len: u16,
    /// Descriptors after the meta.
    pub part_count: u8,
    /// Place in the order of the link; 0 for frames that are not sequenced.
    pub seq: u64,
    /// The last sequenced frame that the sender of this one has received.
    pub ack: u64,
    /// The receiver.
    pub to: Address,
    /// The sender: where an answer goes.
    pub from: Address,
    /// The rank of the receiver in the region addressed, or of the sender in an answer.
    pub rank: u32,
}

impl Head {
    /// A head without sequence, meta or parts.
    pub const fn new(kind: Kind, to: Address, from: Address) -> Self {
        Self {
            kind,
            flags: 0,
            hops: 0,
            meta_len: 0,
            part_count: 0,
            seq: 0,
            ack: 0,
            to,
            from,
            rank: 0,
        }
    }

    /// Whether the sender waits for an answer.
    pub fn wants_answer(&self) -> bool {
        self.from.port != PortId::NONE
    }
}

/// Bytes that travel beside a body: a range of a segment that sender and receiver share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Whose segment it is: the sender's, or the receiver's own, which the sender hands back.
    pub owner: ProcId,
    /// The segment, numbered by its owner.
    pub segment: u32,
    /// How often the segment has been used; a release names it.
    pub generation: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// One use of a segment that a message keeps from being filled again: what a receiver gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Whose segment it is.
    pub owner: ProcId,
    /// The segment.
    pub segment: u32,
    /// Which use of it.
    pub generation: u32,
}

/// One message on a link. Cloning shares the tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The fixed part.
    pub head: Head,
    /// Meta, part descriptors, body.
    pub tail: Bytes,
}

impl Part {
    /// The segment number of a part that travels behind the body; `offset` counts from the start
    /// of the body.
    pub const INLINE: u32 = u32::MAX;

    /// A part that travels behind the body.
    pub const fn inline(offset: u64, len: u64) -> Self {
        Self { owner: NOBODY, segment: Self::INLINE, generation: 0, offset, len }
    }

    /// What the message holds because of this part; nothing when it travels behind the body.
    pub fn hold(&self) -> Option<Hold> {
        let Self { owner, segment, generation, .. } = *self;
        (segment != Self::INLINE).then_some(Hold { owner, segment, generation })
    }
}

impl Hold {
    /// What parts hold, each once.
    pub fn all(parts: impl IntoIterator<Item = Part>) -> Vec<Self> {
        let mut holds = Vec::new();
        for hold in parts.into_iter().filter_map(|part| part.hold()) {
            // Usually all parts are of one segment.
            if !holds.contains(&hold) {
                holds.push(hold);
            }
        }
        holds
    }
}

impl Frame {
    /// A frame with a head only.
    pub const fn bare(head: Head) -> Self {
        Self { head, tail: Bytes::new() }
    }

    /// What the layer above put before the body.
    pub fn meta(&self) -> &[u8] {
        &self.tail[..usize::from(self.head.meta_len)]
    }

    /// The body, with the parts that travel behind it.
    pub fn body(&self) -> Bytes {
        self.tail.slice(self.body_start()..)
    }

    /// The descriptors of the parts.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let start = usize::from(self.head.meta_len);
        self.tail[start..self.body_start()].as_chunks::<PART_LEN>().0.iter().map(Part::decode)
    }

    /// What the message holds of segments: of its sender's, and of its receiver's own.
    pub fn holds(&self) -> Vec<Hold> {
        Hold::all(self.parts())
    }

    fn body_start(&self) -> usize {
        usize::from(self.head.meta_len) + usize::from(self.head.part_count) * PART_LEN
    }
}

/// The process that a frame of a link without a peer comes from.
pub const NOBODY: ProcId = ProcId::new(u32::MAX, u32::MAX);
