//! What two processes say to each other about memory: requests and replies of a fixed length.
//!
//! All numbers are little-endian. Bytes that belong to a frame follow it.

use crate::error::DataError;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Let me in: `key` and `offset` are the secret; descriptors come along on one machine.
    Hello = 1,
    /// The descriptor of arena segment `slot`.
    Segment = 2,
    /// I hold the buffer.
    Lease = 3,
    /// I no longer do.
    EndLease = 4,
    /// Take the registration back; `operand` is the limit in microseconds.
    Drop = 5,
    /// `length` bytes of the buffer from `offset` on.
    Read = 6,
    /// The bytes that follow, into the buffer from `offset` on; after `operand` microseconds, if it
    /// is not 0, no more of them.
    Write = 7,
    /// Add `operand` to the word at `offset`; the reply has what was there.
    FetchAdd = 8,
    /// Put `operand` where `compare` is; the reply has what was there.
    CompareAndSwap = 9,
    /// Bytes for a transport of the other side, whose name is the first `slot` of them.
    Exchange = 10,
    /// End what stream `key` is doing; the reply comes when nothing of it is written any more.
    Fence = 11,
    /// The bytes of a grid that follows, `compare` of them from `operand` on; `length` is that of
    /// the grid, which begins at `offset` of the buffer.
    Gather = 12,
}

impl Verb {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Verb; 12] = [
            Verb::Hello,
            Verb::Segment,
            Verb::Lease,
            Verb::EndLease,
            Verb::Drop,
            Verb::Read,
            Verb::Write,
            Verb::FetchAdd,
            Verb::CompareAndSwap,
            Verb::Exchange,
            Verb::Fence,
            Verb::Gather,
        ];
        ALL.into_iter().find(|verb| *verb as u8 == byte)
    }
}

/// One question. What a field means depends on the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for.
    pub verb: Verb,
    /// Which registration,
    pub slot: u32,
    /// and the proof that it is still the same.
    pub key: u64,
    /// Where in it.
    pub offset: u64,
    /// How many bytes, of the buffer or behind this frame.
    pub length: u64,
    /// A number to work with.
    pub operand: u64,
    /// Another one.
    pub compare: u64,
}

/// The length of a request.
pub const REQUEST_LEN: usize = 48;

impl Request {
    /// A question about a registration.
    pub fn of(verb: Verb, slot: u32, key: u64) -> Self {
        Self { verb, slot, key, offset: 0, length: 0, operand: 0, compare: 0 }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[0] = self.verb as u8;
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        let words = [self.key, self.offset, self.length, self.operand, self.compare];
        for (place, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// From bytes; none when they are no request.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let verb = Verb::from_byte(bytes[0])?;
        let slot = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let [key, offset, length, operand, compare] = words(&bytes[8..]);
        Some(Self { verb, slot, key, offset, length, operand, compare })
    }
}

/// How a question ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As asked.
    Done = 0,
    /// The registration is not good any more.
    Released = 1,
    /// The range is not in the buffer, whose length is `value`.
    OutOfBounds = 2,
    /// The buffer may only be read.
    ReadOnly = 3,
    /// The bytes that follow say why not.
    Refused = 4,
    /// The time was over.
    Deadline = 5,
    /// The range is no word.
    Misaligned = 6,
}

impl Status {
    fn from_byte(byte: u8) -> Option<Self> {
        const ALL: [Status; 7] = [
            Status::Done,
            Status::Released,
            Status::OutOfBounds,
            Status::ReadOnly,
            Status::Refused,
            Status::Deadline,
            Status::Misaligned,
        ];
        ALL.into_iter().find(|status| *status as u8 == byte)
    }
}

/// An answer, or the head of one chunk of a longer answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// How many bytes follow.
    pub length: u32,
    /// A number that was asked for.
    pub value: u64,
}

/// The length of a reply.
pub const REPLY_LEN: usize = 16;

impl Reply {
    /// An answer without bytes.
    pub fn of(status: Status, value: u64) -> Self {
        Self { status, length: 0, value }
    }

    /// What it means as the answer to a request about a registration.
    ///
    /// # Errors
    /// The request was not done.
    pub fn outcome(self, request: &Request) -> Result<u64, DataError> {
        match self.status {
            Status::Done => Ok(self.value),
            Status::Released | Status::Refused => Err(DataError::Released),
            Status::OutOfBounds => Err(DataError::OutOfBounds {
                offset: request.offset,
                end: request.offset.saturating_add(request.length),
                len: self.value,
            }),
            Status::ReadOnly => Err(DataError::ReadOnly),
            Status::Deadline => Err(DataError::Deadline),
            Status::Misaligned => Err(DataError::Misaligned { offset: request.offset }),
        }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        bytes[0] = self.status as u8;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// From bytes; none when they are no reply.
    pub fn decode(bytes: &[u8; REPLY_LEN]) -> Option<Self> {
        let status = Status::from_byte(bytes[0])?;
        let length = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let [value] = words(&bytes[8..]);
        Some(Self { status, length, value })
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}
