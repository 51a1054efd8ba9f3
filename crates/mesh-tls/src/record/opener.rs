//! The receiving direction of a connection.

use super::keys::{Protection, Shared};
use super::{
    ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, KEY_UPDATE, PLAIN_LEN_MAX, RECORD_HEAD_LEN,
    RECORD_LEN_MAX, RECORD_TAIL_LEN,
};
use crate::error::TlsError;
use rustls::AlertDescription;
use std::ops::Range;
use std::sync::Arc;

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
    /// Allocated with a capacity of one record when it is first needed.
    received: Vec<u8>,
    received_len_max: usize,
    /// Whether a read has filled the buffer: more bytes follow, so the buffer grows.
    is_filled: bool,
    start: usize,
    end: usize,
    /// The plaintext of the last record that was not consumed.
    plain: Range<usize>,
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
    pub(super) fn new(
        protection: Protection,
        shared: Arc<Shared>,
        received: Vec<u8>,
        records_max: usize,
    ) -> Self {
        Self {
            protection,
            shared,
            end: received.len(),
            received,
            received_len_max: records_max * RECORD_LEN_MAX,
            is_filled: false,
            start: 0,
            plain: 0..0,
            is_closed: false,
        }
    }

    /// The buffer for the next bytes from the socket. It is never empty after [`Opener::open`]
    /// returned `None`. The plaintext of the last record is discarded.
    pub fn spare(&mut self) -> &mut [u8] {
        self.plain = 0..0;
        if self.start > 0 {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let len = if self.is_filled { self.received_len_max } else { RECORD_LEN_MAX };
        if self.received.len() < len {
            self.received.resize(len, 0);
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
        self.is_filled |= self.end == self.received.len();
    }

    /// Returns the plaintext of the next record, or `None` if no complete one has arrived.
    ///
    /// The plaintext stays in the receive buffer until the next call of this function or of
    /// [`Opener::spare`].
    ///
    /// # Errors
    /// [`TlsError::Tampered`], [`TlsError::NotSealed`] or [`TlsError::Misbehaved`] if the bytes are
    /// not a record of the peer; [`TlsError::Alert`] if it closed the connection with an alert,
    /// which for a client may mean that the server did not accept it. Close the connection after an
    /// error.
    pub fn open(&mut self) -> Result<Option<&[u8]>, TlsError> {
        self.plain = 0..0;
        while !self.is_closed {
            match self.next_record()? {
                Record::Partial => return Ok(None),
                Record::Data(plain) if plain.is_empty() => {}
                Record::Data(plain) => {
                    self.plain = plain;
                    return Ok(Some(self.plain()));
                }
                Record::Ours => {}
                Record::Close => self.is_closed = true,
            }
        }
        (self.start, self.end) = (0, 0);
        Ok(None)
    }

    /// The plaintext of the last record, without the bytes that were passed to
    /// [`Opener::consume`].
    pub fn plain(&self) -> &[u8] {
        &self.received[self.plain.clone()]
    }

    /// Removes the first `len` bytes of [`Opener::plain`].
    ///
    /// # Panics
    /// If it has fewer bytes.
    pub fn consume(&mut self, len: usize) {
        assert!(len <= self.plain.len(), "consumed {len} bytes of fewer");
        self.plain.start += len;
    }

    /// Whether a complete record has arrived.
    pub fn has_record(&self) -> bool {
        let received = &self.received[self.start..self.end];
        let head = received.first_chunk::<RECORD_HEAD_LEN>();
        head.is_some_and(|head| received.len() >= RECORD_HEAD_LEN + rest_len(*head))
    }

    /// Whether the peer announced the end of the connection. A connection that ends without this
    /// announcement was cut.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    fn next_record(&mut self) -> Result<Record, TlsError> {
        let received = &mut self.received[self.start..self.end];
        let Some((head, rest)) = received.split_first_chunk_mut::<RECORD_HEAD_LEN>() else {
            return Ok(Record::Partial);
        };
        let len = rest_len(*head);
        if head[0] != DATA || !(RECORD_TAIL_LEN..=SEALED_LEN_MAX).contains(&len) {
            return Err(TlsError::NotSealed);
        }
        let Some(sealed) = rest.get_mut(..len) else { return Ok(Record::Partial) };
        let inner_len = self.protection.open(*head, sealed)?;
        let inner = &sealed[..inner_len];
        // The type is the last byte that is not padding.
        let Some(plain_len) = inner.iter().rposition(|byte| *byte != 0) else {
            return Err(TlsError::Misbehaved("a record without a type"));
        };
        if plain_len > PLAIN_LEN_MAX {
            return Err(TlsError::Misbehaved("a record that is too long"));
        }
        let plain_start = self.start + RECORD_HEAD_LEN;
        let plain = plain_start..plain_start + plain_len;
        let kind = inner[plain_len];
        self.start = plain_start + len;
        match kind {
            DATA => Ok(Record::Data(plain)),
            HANDSHAKE => self.replace_key(plain),
            ALERT => self.end_link(plain),
            _ => Err(TlsError::Misbehaved("a record of an unknown type")),
        }
    }

    /// Switches to the next key, with which the peer encrypts from here on.
    fn replace_key(&mut self, message: Range<usize>) -> Result<Record, TlsError> {
        match self.received[message] {
            [KEY_UPDATE, 0, 0, 1, is_wanted @ (0 | 1)] => {
                self.protection = self.shared.next_opening()?;
                if is_wanted == 1 {
                    self.shared.want_update();
                }
                Ok(Record::Ours)
            }
            _ => Err(TlsError::Misbehaved("a message of a handshake after it was done")),
        }
    }

    fn end_link(&self, message: Range<usize>) -> Result<Record, TlsError> {
        match self.received[message] {
            [_, CLOSE_NOTIFY] => Ok(Record::Close),
            [_, code] => Err(TlsError::Alert(AlertDescription::from(code))),
            _ => Err(TlsError::Misbehaved("an alert that is none")),
        }
    }
}

/// The number of bytes after the header of a record.
fn rest_len(head: [u8; RECORD_HEAD_LEN]) -> usize {
    usize::from(u16::from_be_bytes([head[3], head[4]]))
}
