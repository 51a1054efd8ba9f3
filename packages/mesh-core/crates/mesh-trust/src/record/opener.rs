//! The receiving direction of a connection.

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

/// The maximum number of encrypted bytes that are read ahead: four records of maximum length.
pub const RECEIVED_LEN_MAX: usize = 4 * RECORD_LEN_MAX;

/// The maximum number of bytes after the header of a record.
const SEALED_LEN_MAX: usize = RECORD_LEN_MAX - RECORD_HEAD_LEN;

/// Decrypts the bytes that a connection receives.
///
/// The owner reads from the socket into [`Opener::spare`], reports the number of bytes with
/// [`Opener::filled`], and calls [`Opener::open`] until it returns no more complete records.
#[derive(Debug)]
pub struct Opener {
    protection: Protection,
    shared: Arc<Shared>,
    /// Allocated once, when it is first needed.
    received: Vec<u8>,
    start: usize,
    end: usize,
    is_closed: bool,
}

/// The result of processing one record.
enum Record {
    /// The record is incomplete.
    Partial,
    /// Application data, at this range of the buffer.
    Data(Range<usize>),
    /// A control message, which has been handled.
    Ours,
    /// The peer closed the connection; this is the last record.
    Close,
}

impl Opener {
    pub(super) fn new(protection: Protection, shared: Arc<Shared>, received: &[u8]) -> Self {
        let (received, end) = (received.to_vec(), received.len());
        Self { protection, shared, received, start: 0, end, is_closed: false }
    }

    /// The buffer for the next bytes from the socket. It is never empty after [`Opener::open`]
    /// returned `None`.
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

    /// Reports that `len` bytes of [`Opener::spare`] were filled.
    ///
    /// # Panics
    /// If the buffer has fewer bytes.
    pub fn filled(&mut self, len: usize) {
        self.end += len;
        assert!(self.end <= self.received.len(), "filled {len} bytes of fewer");
    }

    /// Returns the plaintext of the next record, or `None` if no complete one has arrived.
    ///
    /// The plaintext stays in the receive buffer until the next call.
    ///
    /// # Errors
    /// [`TrustError::Tampered`] or [`TrustError::Misbehaved`] if the bytes are not a record of the
    /// peer; [`TrustError::Refused`] if it closed the connection with an alert, which for a client
    /// means that the server did not accept it. Close the connection after an error.
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

    /// Whether the peer announced the end of the connection. A connection that ends without this
    /// announcement was cut.
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

    /// Switches to the next key, with which the peer encrypts from here on.
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
