//! The protocol between two processes about memory: requests and replies of a fixed length.
//!
//! All numbers are little-endian. The body of a frame follows it.

use crate::error::DataError;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Authenticate: `key` and `offset` are the secret. On one machine, descriptors are attached.
    Hello = 1,
    /// Return the descriptor of arena segment `slot`.
    Segment = 2,
    /// The sender holds the buffer.
    Lease = 3,
    /// The sender no longer holds the buffer.
    EndLease = 4,
    /// Release the registration; `operand` is the limit in microseconds.
    Drop = 5,
    /// Return `length` bytes of the buffer, starting at `offset`.
    Read = 6,
    /// Write the body to the buffer, starting at `offset`. If `operand` is not 0, write nothing
    /// after that many microseconds.
    Write = 7,
    /// Add `operand` to the word at `offset`; the reply contains the previous value.
    FetchAdd = 8,
    /// Store `operand` if the word equals `compare`; the reply contains the previous value.
    CompareAndSwap = 9,
    /// Pass the body to a transport of the other side, whose name is its first `slot` bytes.
    Exchange = 10,
    /// End the operation of stream `key`; the reply is sent when no more of it is written.
    Fence = 11,
    /// Return `compare` bytes of a grid, starting at byte `operand` of the grid. The grid is in the
    /// body of `length` bytes; it begins at `offset` of the buffer.
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

/// One request. The meaning of a field depends on the verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub verb: Verb,
    /// The slot of the registration.
    pub slot: u32,
    /// The key, which proves that the slot still contains the same registration.
    pub key: u64,
    /// The offset in the registration.
    pub offset: u64,
    /// The number of bytes, of the buffer or of the body.
    pub length: u64,
    /// An operand of the operation.
    pub operand: u64,
    /// A second operand.
    pub compare: u64,
}

/// The length of a request.
pub const REQUEST_LEN: usize = 48;

impl Request {
    /// A request about a registration.
    pub fn of(verb: Verb, slot: u32, key: u64) -> Self {
        Self { verb, slot, key, offset: 0, length: 0, operand: 0, compare: 0 }
    }

    /// Encodes the request.
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

    /// Decodes a request; `None` if the bytes are malformed.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Self> {
        let verb = Verb::from_byte(bytes[0])?;
        let slot = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let [key, offset, length, operand, compare] = words(&bytes[8..]);
        Some(Self { verb, slot, key, offset, length, operand, compare })
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The request was executed.
    Done = 0,
    /// The registration is no longer valid.
    Released = 1,
    /// The range exceeds the buffer, whose length is `value`.
    OutOfBounds = 2,
    /// The buffer is read-only.
    ReadOnly = 3,
    /// The request was refused; the body contains the reason.
    Refused = 4,
    /// The time limit has passed.
    Deadline = 5,
    /// The range is not an aligned word.
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

/// A reply, or the head of one chunk of a longer reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result.
    pub status: Status,
    /// The length of the body.
    pub length: u32,
    /// The requested number.
    pub value: u64,
}

/// The length of a reply.
pub const REPLY_LEN: usize = 16;

impl Reply {
    /// A reply without a body.
    pub fn of(status: Status, value: u64) -> Self {
        Self { status, length: 0, value }
    }

    /// Interprets it as the reply to a request about a registration.
    ///
    /// # Errors
    /// The request was not executed.
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

    /// Encodes the reply.
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        bytes[0] = self.status as u8;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Decodes a reply; `None` if the bytes are malformed.
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
