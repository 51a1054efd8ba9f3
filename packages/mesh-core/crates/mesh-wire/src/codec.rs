//! Encoding and decoding of frames. All numbers are little-endian.

use crate::frame::{Frame, HEAD_LEN, Head, Kind, PART_LEN, Part, TAIL_LEN_MAX};
use crate::id::{Address, PortId, ProcId};
use bytes::Bytes;
use thiserror::Error;

/// The first byte of every head, which reveals a peer with another protocol immediately.
pub const MAGIC: u8 = 0xA7;
/// The version of this format.
pub const VERSION: u8 = 1;

/// The reason why bytes are not a frame. The connection is closed, because the start of the next
/// head cannot be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// The peer does not use this protocol.
    #[error("not a mesh frame (first byte {0:#04x}): check that the peer is a mesh process")]
    Magic(u8),
    /// The peer uses another version.
    #[error("wire version {0} is not {VERSION}: install the same version on both sides")]
    Version(u8),
    /// A number that is not a frame kind.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// The tail exceeds the maximum length.
    #[error("frame tail of {0} bytes is over the limit of {TAIL_LEN_MAX}")]
    TooLong(usize),
    /// Metadata and parts do not fit in the tail.
    #[error("meta and parts are longer than the frame")]
    Overlap,
}

impl Head {
    /// Encodes the head of a frame whose tail has `tail_len` bytes.
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

    /// Decodes a head. Also returns the length of the tail that follows it.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not a head that this version supports.
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
    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; PART_LEN] {
        let mut out = [0; PART_LEN];
        out[0..8].copy_from_slice(&self.owner.to_u64().to_le_bytes());
        out[8..12].copy_from_slice(&self.segment.to_le_bytes());
        out[12..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// The inverse of [`Part::encode`].
    pub fn decode(bytes: &[u8; PART_LEN]) -> Self {
        Self {
            owner: ProcId::from_u64(u64_at(bytes, 0)),
            segment: u32_at(bytes, 8),
            generation: u32_at(bytes, 12),
            offset: u64_at(bytes, 16),
            len: u64_at(bytes, 24),
        }
    }
}

/// The size of a decoder's read-ahead buffer.
const READ_AHEAD_LEN: usize = 64 << 10;

/// Decodes a stream of bytes into frames, regardless of how the stream is split.
///
/// The owner reads into [`Decoder::spare`], reports the number of bytes with [`Decoder::filled`],
/// and takes complete frames with [`Decoder::next_frame`]. A long tail is read directly into a
/// separate allocation, which is made only after its head has passed the limits.
#[derive(Debug)]
pub struct Decoder {
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    long: Option<LongTail>,
}

/// A frame whose tail does not fit in the read-ahead buffer.
#[derive(Debug)]
struct LongTail {
    head: Head,
    tail: Vec<u8>,
    end: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { ahead: vec![0; READ_AHEAD_LEN].into_boxed_slice(), start: 0, end: 0, long: None }
    }
}

impl Decoder {
    /// The buffer for the next bytes of the stream. It is never empty.
    pub fn spare(&mut self) -> &mut [u8] {
        if let Some(long) = &mut self.long {
            return &mut long.tail[long.end..];
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.ahead.len() {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.ahead[self.end..]
    }

    /// Reports that `len` bytes were read into [`Decoder::spare`].
    pub fn filled(&mut self, len: usize) {
        match &mut self.long {
            Some(long) => long.end += len,
            None => self.end += len,
        }
    }

    /// Consumes bytes from another buffer and passes the frames that they complete to `handle`.
    ///
    /// # Errors
    /// See [`Decoder::next_frame`].
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut handle: impl FnMut(Frame),
    ) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let spare = self.spare();
            let len = spare.len().min(bytes.len());
            spare[..len].copy_from_slice(&bytes[..len]);
            self.filled(len);
            bytes = &bytes[len..];
            while let Some(frame) = self.next_frame()? {
                handle(frame);
            }
        }
        Ok(())
    }

    /// Takes the next complete frame.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes can never become a frame; the stream is unusable afterwards.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        if let Some(long) = self.long.take() {
            if long.end < long.tail.len() {
                self.long = Some(long);
                return Ok(None);
            }
            return Ok(Some(Frame { head: long.head, tail: long.tail.into() }));
        }
        let unread = &self.ahead[self.start..self.end];
        let Some(head) = unread.first_chunk::<HEAD_LEN>() else { return Ok(None) };
        let (head, tail_len) = Head::decode(head)?;
        let rest = &unread[HEAD_LEN..];
        if let Some(tail) = rest.get(..tail_len) {
            let tail = Bytes::copy_from_slice(tail);
            self.start += HEAD_LEN + tail_len;
            return Ok(Some(Frame { head, tail }));
        }
        if HEAD_LEN + tail_len > self.ahead.len() {
            let mut tail = vec![0; tail_len];
            tail[..rest.len()].copy_from_slice(rest);
            let end = rest.len();
            (self.start, self.end) = (0, 0);
            self.long = Some(LongTail { head, tail, end });
        }
        Ok(None)
    }
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
