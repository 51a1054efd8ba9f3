//! What comes in.

use super::keys::{Protection, Shared};
use super::{
    ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, KEY_UPDATE, PLAIN_LEN_MAX, RECORD_HEAD_LEN,
    RECORD_LEN_MAX, RECORD_TAIL_LEN,
};
use crate::alert;
use crate::error::TrustError;
use rustls::AlertDescription;
use std::ops::Range;
use std::sync::Arc;

/// Sealed bytes that are read ahead at most: several of the longest records.
pub const RECEIVED_LEN_MAX: usize = 4 * RECORD_LEN_MAX;

/// The most bytes behind the head of a record.
const SEALED_LEN_MAX: usize = RECORD_LEN_MAX - RECORD_HEAD_LEN;

/// Opens what comes in over a link.
///
/// The owner reads from the socket into [`Opener::spare`], says how much with [`Opener::filled`]
/// and takes what is whole with [`Opener::open`] until there is nothing more.
#[derive(Debug)]
pub struct Opener {
    protection: Protection,
    shared: Arc<Shared>,
    /// Taken once, when it is first needed.
    received: Vec<u8>,
    start: usize,
    end: usize,
    is_closed: bool,
}

/// One record.
enum Record {
    /// It is not whole.
    Partial,
    /// Plain bytes, and where they are.
    Data(Range<usize>),
    /// It was for us.
    Ours,
    /// The last one.
    Close,
}

impl Opener {
    pub(super) fn new(protection: Protection, shared: Arc<Shared>, received: &[u8]) -> Self {
        let (received, end) = (received.to_vec(), received.len());
        Self { protection, shared, received, start: 0, end, is_closed: false }
    }

    /// Where the next bytes of the socket belong; never empty after [`Opener::open`] gave nothing.
    pub fn spare(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end + RECORD_LEN_MAX > self.received.len() {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.received.len() < RECEIVED_LEN_MAX {
            self.received.resize(RECEIVED_LEN_MAX, 0);
        }
        &mut self.received[self.end..]
    }

    /// The socket has filled that many bytes of [`Opener::spare`].
    ///
    /// # Panics
    /// When there was not so much room.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.received.len(), "filled {len} bytes of fewer");
    }

    /// The plain bytes of the next record, or nothing when it has not come whole.
    ///
    /// They stay where they were received until the next call.
    ///
    /// # Errors
    /// [`TrustError::Tampered`] or [`TrustError::Misbehaved`] when the bytes are no record of the
    /// peer; [`TrustError::Refused`] when it ended the link with an alert, which for a client says
    /// that the server did not accept it. The link is to be closed.
    pub fn open(&mut self) -> Result<Option<&[u8]>, TrustError> {
        while !self.is_closed {
            match self.next_record()? {
                Record::Partial => return Ok(None),
                Record::Data(plain) if plain.is_empty() => {}
                Record::Data(plain) => return Ok(Some(&self.received[plain])),
                Record::Ours => {}
                Record::Close => self.is_closed = true,
            }
        }
        (self.start, self.end) = (0, 0);
        Ok(None)
    }

    /// Whether the peer has said that nothing more will come. A link that ends without it was cut.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn next_record(&mut self) -> Result<Record, TrustError> {
        let received = &mut self.received[self.start..self.end];
        let Some((head, rest)) = received.split_first_chunk_mut::<RECORD_HEAD_LEN>() else {
            return Ok(Record::Partial);
        };
        let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] != DATA || !(RECORD_TAIL_LEN..=SEALED_LEN_MAX).contains(&len) {
            return Err(misbehaved("a record that nobody sealed"));
        }
        let Some(sealed) = rest.get_mut(..len) else { return Ok(Record::Partial) };
        let inner_len = self.protection.open(*head, sealed)?;
        let inner = &sealed[..inner_len];
        // The type is the last byte that is not padding.
        let Some(plain_len) = inner.iter().rposition(|byte| *byte != 0) else {
            return Err(misbehaved("a record without a type"));
        };
        if plain_len > PLAIN_LEN_MAX {
            return Err(misbehaved("a record that is too long"));
        }
        let plain_start = self.start + RECORD_HEAD_LEN;
        let plain = plain_start..plain_start + plain_len;
        let kind = inner[plain_len];
        self.start = plain_start + len;
        match kind {
            DATA => Ok(Record::Data(plain)),
            HANDSHAKE => self.replace_key(plain),
            ALERT => self.end_link(plain),
            _ => Err(misbehaved("a record of an unknown type")),
        }
    }

    /// The peer seals with its next key from here on.
    fn replace_key(&mut self, message: Range<usize>) -> Result<Record, TrustError> {
        match self.received[message] {
            [KEY_UPDATE, 0, 0, 1, is_wanted @ (0 | 1)] => {
                self.protection = self.shared.next_opening()?;
                if is_wanted == 1 {
                    self.shared.want_update();
                }
                Ok(Record::Ours)
            }
            _ => Err(misbehaved("a message of a handshake after it was done")),
        }
    }

    fn end_link(&self, message: Range<usize>) -> Result<Record, TrustError> {
        match self.received[message] {
            [_, CLOSE_NOTIFY] => Ok(Record::Close),
            [_, code] => Err(alert::refusal(AlertDescription::from(code))),
            _ => Err(misbehaved("an alert that is none")),
        }
    }
}

fn misbehaved(why: &str) -> TrustError {
    TrustError::Misbehaved { why: why.to_owned() }
}
