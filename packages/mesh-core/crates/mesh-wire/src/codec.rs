//! Bytes to frames and back. All numbers are little-endian.

use crate::frame::{Frame, HEAD_LEN, Head, Kind, PART_LEN, Part, TAIL_LEN_MAX};
use crate::id::{Address, PortId, ProcId};
use bytes::{Buf, BytesMut};
use thiserror::Error;

/// The first byte of every head: a peer that speaks something else is noticed at once.
pub const MAGIC: u8 = 0xA7;
/// The version of this layout.
pub const VERSION: u8 = 1;

/// Why bytes are not a frame. The link is closed: there is no way to find the next head.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// The peer does not speak this protocol.
    #[error("not a mesh frame (first byte {0:#04x}): check that the peer is a mesh process")]
    Magic(u8),
    /// The peer speaks another version.
    #[error("wire version {0} is not {VERSION}: install the same version on both sides")]
    Version(u8),
    /// A number that names no kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// More bytes than a frame may have.
    #[error("frame tail of {0} bytes is over the limit of {TAIL_LEN_MAX}")]
    TooLong(usize),
    /// Meta and parts do not fit in the tail.
    #[error("meta and parts are longer than the frame")]
    Overlap,
}

impl Head {
    /// The head as it travels, in front of a tail of `tail_len` bytes.
    pub fn encode(&self, tail_len: usize) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        out[0] = MAGIC;
        out[1] = VERSION;
        out[2] = self.kind as u8;
        out[3] = self.flags;
        out[4..8].copy_from_slice(&(tail_len as u32).to_le_bytes());
        out[8..16].copy_from_slice(&self.seq.to_le_bytes());
        out[16..24].copy_from_slice(&self.ack.to_le_bytes());
        out[24..32].copy_from_slice(&self.to.proc.to_u64().to_le_bytes());
        out[32..40].copy_from_slice(&self.to.port.0.to_le_bytes());
        out[40..48].copy_from_slice(&self.from.proc.to_u64().to_le_bytes());
        out[48..56].copy_from_slice(&self.from.port.0.to_le_bytes());
        out[56..60].copy_from_slice(&self.rank.to_le_bytes());
        out[60..62].copy_from_slice(&self.meta_len.to_le_bytes());
        out[62] = self.part_count;
        out[63] = self.hops;
        out
    }

    /// Reads a head and the length of the tail that follows it.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are no head that this version understands.
    pub fn decode(bytes: &[u8; HEAD_LEN]) -> Result<(Self, usize), Malformed> {
        if bytes[0] != MAGIC {
            return Err(Malformed::Magic(bytes[0]));
        }
        if bytes[1] != VERSION {
            return Err(Malformed::Version(bytes[1]));
        }
        let kind = Kind::from_u8(bytes[2]).ok_or(Malformed::Kind(bytes[2]))?;
        let head = Self {
            kind,
            flags: bytes[3],
            seq: u64_at(bytes, 8),
            ack: u64_at(bytes, 16),
            to: address_at(bytes, 24),
            from: address_at(bytes, 40),
            rank: u32_at(bytes, 56),
            meta_len: u16::from_le_bytes([bytes[60], bytes[61]]),
            part_count: bytes[62],
            hops: bytes[63],
        };
        let tail_len = u32_at(bytes, 4) as usize;
        if tail_len > TAIL_LEN_MAX {
            return Err(Malformed::TooLong(tail_len));
        }
        if usize::from(head.meta_len) + usize::from(head.part_count) * PART_LEN > tail_len {
            return Err(Malformed::Overlap);
        }
        Ok((head, tail_len))
    }
}

impl Part {
    /// The descriptor as it travels.
    pub fn encode(&self) -> [u8; PART_LEN] {
        let mut out = [0; PART_LEN];
        out[0..4].copy_from_slice(&self.segment.to_le_bytes());
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..16].copy_from_slice(&self.offset.to_le_bytes());
        out[16..24].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// The inverse of [`Part::encode`].
    pub fn decode(bytes: &[u8; PART_LEN]) -> Self {
        Self {
            segment: u32_at(bytes, 0),
            generation: u32_at(bytes, 4),
            offset: u64_at(bytes, 8),
            len: u64_at(bytes, 16),
        }
    }
}

/// Takes the first frame out of `buffer`, or nothing when it is not complete yet.
///
/// # Errors
/// [`Malformed`] when the bytes can never become a frame; limits are checked on the head alone,
/// before any memory is taken for the tail.
pub fn take_frame(buffer: &mut BytesMut) -> Result<Option<Frame>, Malformed> {
    let Some((head, tail_len)) = peek(buffer)? else { return Ok(None) };
    if buffer.len() < HEAD_LEN + tail_len {
        return Ok(None);
    }
    buffer.advance(HEAD_LEN);
    Ok(Some(Frame { head, tail: buffer.split_to(tail_len).freeze() }))
}

/// How many bytes the first frame of `buffer` still lacks; 0 when it is complete.
///
/// # Errors
/// As [`take_frame`].
pub fn missing(buffer: &[u8]) -> Result<usize, Malformed> {
    let whole = match peek(buffer)? {
        Some((_, tail_len)) => HEAD_LEN + tail_len,
        None => HEAD_LEN,
    };
    Ok(whole.saturating_sub(buffer.len()))
}

fn peek(buffer: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
    buffer.first_chunk::<HEAD_LEN>().map(Head::decode).transpose()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller's array is long enough"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller's array is long enough"))
}

fn address_at(bytes: &[u8], at: usize) -> Address {
    Address { proc: ProcId::from_u64(u64_at(bytes, at)), port: PortId(u64_at(bytes, at + 8)) }
}
