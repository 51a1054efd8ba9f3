//! The sending direction of a connection.

use super::keys::{Protection, RECORDS_PER_KEY_MAX, Shared};
use super::{
    ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, KEY_UPDATE, PLAIN_LEN_MAX, RECORD_HEAD_LEN,
    RECORD_TAIL_LEN, SEALED_LEN_MAX, VERSION,
};
use crate::error::TlsError;
use std::io::IoSlice;
use std::sync::Arc;

/// Space reserved for an alert and a key update, so that they always fit.
const CONTROL_LEN: usize = 2 * (RECORD_HEAD_LEN + 8 + RECORD_TAIL_LEN);

/// Encrypts the bytes that a connection sends.
///
/// The owner passes plaintext to [`Sealer::write`] or [`Sealer::write_with`], which accept as many
/// bytes as the buffer can hold. The owner then writes [`Sealer::pending`] to the socket and
/// reports the number of bytes sent with [`Sealer::sent`].
#[derive(Debug)]
pub struct Sealer {
    protection: Protection,
    shared: Arc<Shared>,
    /// Allocated once, when it is first needed; initialized as far as it was used.
    out: Vec<u8>,
    start: usize,
    end: usize,
    /// The maximum number of encrypted bytes that wait for the socket.
    pending_len_max: usize,
    is_closed: bool,
}

impl Sealer {
    pub(super) fn new(
        protection: Protection,
        shared: Arc<Shared>,
        unsent: Vec<u8>,
        records_max: usize,
    ) -> Self {
        Self {
            protection,
            shared,
            end: unsent.len(),
            out: unsent,
            start: 0,
            pending_len_max: records_max * SEALED_LEN_MAX,
            is_closed: false,
        }
    }

    /// Encrypts bytes of the pieces, in order, until the buffer is full. Returns their number.
    ///
    /// Each record adds 22 bytes and a constant time, so pass many small messages in one call.
    ///
    /// # Errors
    /// [`TlsError::Closed`] after [`Sealer::close`]; [`TlsError::Crypto`] if encryption has
    /// become impossible. Close the connection in this case.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, TlsError> {
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut pieces = Pieces { pieces, offset: 0 };
        self.write_with(len, |plain| pieces.gather(plain))
    }

    /// Like [`Sealer::write`], for `len` bytes that `fill` copies into the records, in order.
    ///
    /// # Errors
    /// As [`Sealer::write`].
    pub fn write_with(
        &mut self,
        len: usize,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, TlsError> {
        if self.is_closed {
            return Err(TlsError::Closed);
        }
        self.compact();
        self.update_key_if_due()?;
        let mut taken = 0;
        while taken < len {
            let plain_len = (len - taken).min(PLAIN_LEN_MAX);
            let free_len = self.pending_len_max.saturating_sub(self.end);
            if free_len < RECORD_HEAD_LEN + plain_len + RECORD_TAIL_LEN {
                break;
            }
            self.seal(DATA, plain_len, &mut fill)?;
            taken += plain_len;
        }
        Ok(taken)
    }

    /// The bytes to send to the peer.
    pub fn pending(&self) -> &[u8] {
        &self.out[self.start..self.end]
    }

    /// Reports that `len` bytes of [`Sealer::pending`] were sent.
    ///
    /// # Panics
    /// If [`Sealer::pending`] has fewer bytes.
    pub fn sent(&mut self, len: usize) {
        assert!(len <= self.pending().len(), "sent {len} bytes of fewer");
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends the announcement that the connection ends to the pending bytes.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if encryption has become impossible.
    pub fn close(&mut self) -> Result<(), TlsError> {
        if self.is_closed {
            return Ok(());
        }
        self.is_closed = true;
        self.seal(ALERT, 2, |plain| plain.copy_from_slice(&[1, CLOSE_NOTIFY]))
    }

    /// Replaces our key now. Without this call, it is replaced before it has been used too often.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if no next key can be derived.
    pub fn update_key(&mut self) -> Result<(), TlsError> {
        self.seal(HANDSHAKE, 5, |plain| plain.copy_from_slice(&[KEY_UPDATE, 0, 0, 1, 0]))?;
        self.protection = self.shared.next_sealing()?;
        Ok(())
    }

    /// Replaces our key if it has been used for many records, or if the peer has requested it.
    ///
    /// Postponed while the buffer is full, so that a peer that requests keys without reading cannot
    /// make it grow.
    fn update_key_if_due(&mut self) -> Result<(), TlsError> {
        let has_space = self.end <= self.pending_len_max;
        let is_worn = self.protection.number() >= RECORDS_PER_KEY_MAX;
        if has_space && (self.shared.take_update_wanted() || is_worn) {
            self.update_key()?;
        }
        Ok(())
    }

    /// Moves pending bytes to the front of the buffer, if that frees at least half of it.
    fn compact(&mut self) {
        let len_max = self.pending_len_max + CONTROL_LEN;
        if self.out.capacity() < len_max {
            self.out.reserve_exact(len_max - self.out.len());
        }
        if self.start > self.pending_len_max / 2 {
            self.out.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }

    /// Appends one record; `fill` writes its `len` plaintext bytes.
    fn seal(&mut self, kind: u8, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), TlsError> {
        let rest_len = u16::try_from(len + RECORD_TAIL_LEN).expect("a record is short");
        let [high, low] = rest_len.to_be_bytes();
        let head = [DATA, VERSION[0], VERSION[1], high, low];
        let end = self.end + RECORD_HEAD_LEN + len + RECORD_TAIL_LEN;
        if self.out.len() < end {
            self.out.resize(end, 0);
        }
        let (start, rest) = self.out[self.end..end].split_at_mut(RECORD_HEAD_LEN);
        let (inner, tag) = rest.split_at_mut(len + 1);
        start.copy_from_slice(&head);
        fill(&mut inner[..len]);
        inner[len] = kind;
        self.end = end;
        self.protection.seal(head, inner, tag)
    }
}

/// The pieces that have not been consumed yet.
struct Pieces<'a> {
    pieces: &'a [IoSlice<'a>],
    offset: usize,
}

impl Pieces<'_> {
    /// Copies the next bytes of the pieces, which must contain enough, until `plain` is full.
    fn gather(&mut self, mut plain: &mut [u8]) {
        while !plain.is_empty() {
            let Some((first, rest)) = self.pieces.split_first() else { return };
            let piece = &first[self.offset..];
            let (taken, left) = plain.split_at_mut(piece.len().min(plain.len()));
            taken.copy_from_slice(&piece[..taken.len()]);
            self.offset += taken.len();
            if taken.len() == piece.len() {
                (self.pieces, self.offset) = (rest, 0);
            }
            plain = left;
        }
    }
}
