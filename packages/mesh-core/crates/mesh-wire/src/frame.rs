//! A message on a connection: a fixed head followed by a tail of bytes.
//!
//! The tail consists of `meta` (the data that the receiving process needs to route the message),
//! one descriptor for each part outside the body, and the body. The core reads the head and the
//! descriptors; meta and body are defined by the layer above.

use crate::id::{Address, PortId, ProcId};
use bytes::Bytes;

/// The encoded length of a head.
pub const HEAD_LEN: usize = 64;
/// The encoded length of a part descriptor.
pub const PART_LEN: usize = 32;
/// The maximum tail length that a receiver accepts; a sender checks it before sending.
pub const TAIL_LEN_MAX: usize = 1 << 30;
/// The maximum number of parts of a frame.
pub const PART_COUNT_MAX: usize = 255;
/// The maximum number of times that a frame may be forwarded.
pub const HOPS_MAX: u8 = 16;

/// The purpose of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Opens a connection: the identity of the sender, its job, and its proof.
    Hello = 1,
    /// Accepts a connection.
    Welcome = 2,
    /// Only acknowledges received frames. Not sequenced.
    Ack = 3,
    /// Requests an ack. Not sequenced.
    Ping = 4,
    /// Requests that a worker serve a job. Not sequenced, and only valid as the first frame of a
    /// connection.
    Attach = 5,
    /// The reply to an attach.
    Attached = 6,
    /// A frame that several hosts forward to one another. Its origin numbers it in the session with
    /// each of them; the session of this connection does not number it.
    Relay = 7,
    /// Frames of several hosts to one other host, aggregated on the way up a tree. Those hosts
    /// number them.
    Batch = 8,
    /// Calls an endpoint; a reply is expected if `from.port` is not [`PortId::NONE`].
    Call = 16,
    /// The value that a call returned.
    Reply = 17,
    /// The reason why a call has no value.
    Fault = 18,
    /// The caller no longer waits.
    Cancel = 19,
    /// Returns credit for messages that were taken from a mailbox.
    Credit = 20,
    /// A message to a channel.
    Post = 21,
    /// A fragment of a frame that is too long to be sent at once.
    Piece = 22,
    /// Creates an actor: opens its mailbox immediately, starts it later.
    Spawn = 24,
    /// Requests a notification when a process dies.
    Watch = 32,
    /// Reports the death of a process.
    Died = 33,
    /// Announces a shared segment; its file descriptor is sent with the frame.
    Segment = 40,
    /// Releases a part of a shared segment to its owner.
    Release = 41,
    /// A call to a region of a mesh, which the receiver distributes.
    Cast = 48,
    /// Replies of several ranks, merged on the way.
    Replies = 49,
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
            8 => Self::Batch,
            16 => Self::Call,
            17 => Self::Reply,
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
            49 => Self::Replies,
            _ => return None,
        })
    }

    /// Whether the session numbers, acknowledges and retransmits frames of this kind.
    pub const fn is_sequenced(self) -> bool {
        (self as u8) >= 16
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// The purpose of the frame.
    pub kind: Kind,
    /// Bits whose meaning depends on the kind.
    pub flags: u8,
    /// How often the frame has been forwarded; it is dropped at [`HOPS_MAX`].
    pub hops: u8,
    /// The length of meta at the start of the tail.
    pub meta_len: u16,
    /// The number of part descriptors after the meta.
    pub part_count: u8,
    /// The sequence number in the session; 0 for frames that are not sequenced.
    pub seq: u64,
    /// The last sequenced frame that the sender of this frame has received.
    pub ack: u64,
    /// The receiver.
    pub to: Address,
    /// The sender, which receives the reply.
    pub from: Address,
    /// The rank of the receiver in the addressed region; in a reply, the rank of its sender.
    pub rank: u32,
}

impl Head {
    /// Creates a head without a sequence number, meta or parts.
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

    /// Whether the sender expects a reply.
    pub fn expects_reply(&self) -> bool {
        self.from.port != PortId::NONE
    }
}

/// Bytes outside the body: a range of a segment that sender and receiver share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The owner of the segment: the sender, the agent of the receiver's host, or the receiver
    /// itself, if the sender returns bytes of the receiver.
    pub owner: ProcId,
    /// The segment, numbered by its owner.
    pub segment: u32,
    /// How often the segment has been used; a release names this number.
    pub generation: u32,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: u64,
}

/// A reference of a message to one use of a segment. The segment is not reused until the receiver
/// releases the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// The owner of the segment.
    pub owner: ProcId,
    /// The segment.
    pub segment: u32,
    /// The use of the segment.
    pub generation: u32,
}

/// A message on a connection. Cloning shares the tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The fixed part.
    pub head: Head,
    /// Meta, part descriptors and body.
    pub tail: Bytes,
}

impl Part {
    /// The segment number of an inline part, whose bytes follow the body; its `offset` counts from
    /// the start of the body.
    pub const INLINE: u32 = u32::MAX;

    /// Creates an inline part, whose bytes follow the body.
    pub const fn inline(offset: u64, len: u64) -> Self {
        Self { owner: UNKNOWN_PROC, segment: Self::INLINE, generation: 0, offset, len }
    }

    /// The reference that a message holds because of this part; `None` for an inline part.
    pub fn segment_ref(&self) -> Option<SegmentRef> {
        let Self { owner, segment, generation, .. } = *self;
        (segment != Self::INLINE).then_some(SegmentRef { owner, segment, generation })
    }
}

impl SegmentRef {
    /// The references that parts hold, without duplicates.
    pub fn all(parts: impl IntoIterator<Item = Part>) -> Vec<Self> {
        let mut segment_refs = Vec::new();
        for segment_ref in parts.into_iter().filter_map(|part| part.segment_ref()) {
            // Usually all parts are in the same segment.
            if !segment_refs.contains(&segment_ref) {
                segment_refs.push(segment_ref);
            }
        }
        segment_refs
    }
}

impl Frame {
    /// Creates a frame that consists of a head only.
    pub const fn bare(head: Head) -> Self {
        Self { head, tail: Bytes::new() }
    }

    /// The metadata that the layer above put before the body.
    pub fn meta(&self) -> &[u8] {
        &self.tail[..usize::from(self.head.meta_len)]
    }

    /// The body, including inline parts that follow it.
    pub fn body(&self) -> Bytes {
        self.tail.slice(self.body_start()..)
    }

    /// The descriptors of the parts.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let start = usize::from(self.head.meta_len);
        self.tail[start..self.body_start()].as_chunks::<PART_LEN>().0.iter().map(Part::decode)
    }

    /// The segment references that the message holds.
    pub fn segment_refs(&self) -> Vec<SegmentRef> {
        SegmentRef::all(self.parts())
    }

    fn body_start(&self) -> usize {
        usize::from(self.head.meta_len) + usize::from(self.head.part_count) * PART_LEN
    }
}

/// The sender of a frame on a connection whose peer is not known.
pub const UNKNOWN_PROC: ProcId = ProcId::new(u32::MAX, u32::MAX);
