//! Many replies in the body of one [`Kind::Replies`] frame.
//!
//! A reply is a head of 16 bytes and a tail that is identical to the tail of a separate frame:
//! meta, part descriptors, body. A reply can therefore be moved from its frame to a bundle and back
//! without parsing it. All numbers are little-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | rank |
//! | 4..8 | bytes of the tail |
//! | 8..10 | bytes of meta at the start of the tail |
//! | 10 | part descriptors after the meta |
//! | 11 | kind: 17 a value, 18 a fault |
//! | 12 | flags, as in the head of the frame: the code of a fault |
//! | 13..16 | 0 |

use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::frame::{Kind, PART_LEN, TAIL_LEN_MAX};
use thiserror::Error;

/// Bytes before the tail of each reply.
pub const ENTRY_HEAD_LEN: usize = 16;

/// The encoded reply of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The rank that replied.
    pub rank: u32,
    /// Whether the reply is a fault instead of a value.
    pub is_fault: bool,
    /// As in the head of a frame: the code of a fault.
    pub flags: u8,
    /// Bytes of meta at the start of `tail`.
    pub meta_len: u16,
    /// Part descriptors after the meta.
    pub part_count: u8,
    /// Meta, descriptors, body.
    pub tail: Bytes,
}

impl Entry {
    /// Returns the number of bytes of the reply in a bundle.
    pub fn encoded_len(&self) -> usize {
        ENTRY_HEAD_LEN + self.tail.len()
    }
}

/// The reason why bytes are not a valid bundle.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// The bundle ends in the middle of a reply.
    #[error("bundle ends inside a reply at byte {0}")]
    Truncated(usize),
    /// Neither a value nor a fault.
    #[error("a reply of kind {0} cannot be in a bundle")]
    Kind(u8),
    /// Reserved bytes are not 0.
    #[error("reserved bytes of a reply are used: install the same version on both sides")]
    Reserved,
    /// Meta and parts do not fit into the tail.
    #[error("meta and parts of a reply are longer than its tail")]
    Overlap,
    /// More replies than ranks that were called.
    #[error("bundle holds more than {0} replies")]
    TooMany(usize),
}

/// Packs replies into the bodies of as few frames as `len_max` allows.
#[derive(Debug)]
pub struct Packer {
    len_max: usize,
    body: BytesMut,
    full: Vec<Bytes>,
}

impl Packer {
    /// Creates a packer of bodies of at most `len_max` bytes; a longer reply gets a separate body.
    pub fn new(len_max: usize) -> Self {
        Self { len_max: len_max.min(TAIL_LEN_MAX), body: BytesMut::new(), full: Vec::new() }
    }

    /// Appends a reply.
    pub fn push(&mut self, entry: &Entry) {
        if !self.body.is_empty() && self.body.len() + entry.encoded_len() > self.len_max {
            self.full.push(self.body.split().freeze());
        }
        let kind = if entry.is_fault { Kind::Fault } else { Kind::Reply };
        self.body.reserve(entry.encoded_len());
        self.body.put_u32_le(entry.rank);
        self.body.put_u32_le(u32::try_from(entry.tail.len()).expect("a tail is at most 1 GiB"));
        self.body.put_u16_le(entry.meta_len);
        self.body.put_u8(entry.part_count);
        self.body.put_u8(kind as u8);
        self.body.put_u8(entry.flags);
        self.body.put_bytes(0, 3);
        self.body.put_slice(&entry.tail);
    }

    /// Returns the bodies, in the order of the replies.
    pub fn finish(mut self) -> Vec<Bytes> {
        if !self.body.is_empty() {
            self.full.push(self.body.freeze());
        }
        self.full
    }
}

/// Splits a bundle; the tails share the memory of `body`.
///
/// # Errors
/// [`Malformed`] if it is not a valid bundle, or contains more than `count_max` replies. Lengths
/// are checked before anything is stored.
pub fn unpack(body: &Bytes, count_max: usize) -> Result<Vec<Entry>, Malformed> {
    let mut entries = Vec::new();
    let mut at = 0;
    while at < body.len() {
        if entries.len() == count_max {
            return Err(Malformed::TooMany(count_max));
        }
        let entry = entry_at(body, at)?;
        at += entry.encoded_len();
        entries.push(entry);
    }
    Ok(entries)
}

fn entry_at(body: &Bytes, at: usize) -> Result<Entry, Malformed> {
    let head: &[u8; ENTRY_HEAD_LEN] = body[at..].first_chunk().ok_or(Malformed::Truncated(at))?;
    let tail_len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let meta_len = u16::from_le_bytes([head[8], head[9]]);
    let part_count = head[10];
    let is_fault = match Kind::from_u8(head[11]) {
        Some(Kind::Reply) => false,
        Some(Kind::Fault) => true,
        _ => return Err(Malformed::Kind(head[11])),
    };
    if head[13..] != [0; 3] {
        return Err(Malformed::Reserved);
    }
    if usize::from(meta_len) + usize::from(part_count) * PART_LEN > tail_len {
        return Err(Malformed::Overlap);
    }
    let start = at + ENTRY_HEAD_LEN;
    if body.len() - start < tail_len {
        return Err(Malformed::Truncated(at));
    }
    Ok(Entry {
        rank: u32::from_le_bytes([head[0], head[1], head[2], head[3]]),
        is_fault,
        flags: head[12],
        meta_len,
        part_count,
        tail: body.slice(start..start + tail_len),
    })
}
