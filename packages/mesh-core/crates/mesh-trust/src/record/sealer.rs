//! The sending direction of a connection.

use super::keys::{Protection, RECORDS_PER_KEY_MAX, Shared};
use super::{
    ALERT, CLOSE_NOTIFY, DATA, HANDSHAKE, KEY_UPDATE, PLAIN_LEN_MAX, RECORD_HEAD_LEN,
    RECORD_TAIL_LEN, TAG_LEN, VERSION,
};
use crate::error::TrustError;
use std::io::IoSlice;
use std::sync::Arc;

/// The maximum number of encrypted bytes that wait for the socket.
pub const PENDING_LEN_MAX: usize = 4 * (RECORD_HEAD_LEN + PLAIN_LEN_MAX + RECORD_TAIL_LEN);

/// Space reserved for an alert and a key update, so that they always fit.
const CONTROL_LEN: usize = 2 * (RECORD_HEAD_LEN + 8 + RECORD_TAIL_LEN);

/// Encrypts the bytes that a connection sends.
///
/// The owner passes pieces of plaintext to [`Sealer::write`], which accepts as many bytes as it has
/// room for. The owner then writes [`Sealer::pending`] to the socket and reports the number of
/// bytes sent with [`Sealer::sent`].
#[derive(Debug)]
pub struct Sealer {
    protection: Protection,
    shared: Arc<Shared>,
    /// Allocated once, when it is first needed.
    out: Vec<u8>,
    start: usize,
    is_closed: bool,
}

impl Sealer {
    pub(super) fn new(protection: Protection, shared: Arc<Shared>, unsent: &[u8]) -> Self {
        Self { protection, shared, out: unsent.to_vec(), start: 0, is_closed: false }
    }

    /// Encrypts bytes of the pieces, in order, as far as there is room. Returns their number.
    ///
    /// Each record adds 22 bytes and a constant time, so pass many small messages in one call.
    ///
    /// # Errors
    /// [`TrustError::Closed`] after [`Sealer::close`]; [`TrustError::Crypto`] if encryption has
    /// become impossible. Close the connection in this case.
    pub fn write(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, TrustError> {
        if self.is_closed {
            return Err(TrustError::Closed);
        }
        self.make_room();
        self.update_key_if_due()?;
        let mut left: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut pieces = Pieces { pieces, offset: 0 };
        let mut taken = 0;
        while left > 0 {
            let room = PENDING_LEN_MAX.saturating_sub(self.out.len());
            let len = left.min(PLAIN_LEN_MAX);
            if room < len + RECORD_HEAD_LEN + RECORD_TAIL_LEN {
                break;
            }
            self.seal(DATA, len, |out| pieces.gather(len, out))?;
            left -= len;
            taken += len;
        }
        Ok(taken)
    }

    /// The bytes to send to the peer.
    pub fn pending(&self) -> &[u8] {
        &self.out[self.start..]
    }

    /// Reports that `len` bytes of [`Sealer::pending`] were sent.
    ///
    /// # Panics
    /// If [`Sealer::pending`] has fewer bytes.
    pub fn sent(&mut self, len: usize) {
        assert!(len <= self.pending().len(), "sent {len} bytes of fewer");
        self.start += len;
        if self.start == self.out.len() {
            self.out.clear();
            self.start = 0;
        }
    }

    /// Appends the announcement that the connection ends to the pending bytes.
    ///
    /// # Errors
    /// [`TrustError::Crypto`] if encryption has become impossible.
    pub fn close(&mut self) -> Result<(), TrustError> {
        if self.is_closed {
            return Ok(());
        }
        self.is_closed = true;
        self.seal(ALERT, 2, |out| out.extend_from_slice(&[1, CLOSE_NOTIFY]))
    }

    /// Replaces our key now. Without this call, it is replaced before it has been used too often.
    ///
    /// # Errors
    /// [`TrustError::Crypto`] if no next key can be derived.
    pub fn update_key(&mut self) -> Result<(), TrustError> {
        self.seal(HANDSHAKE, 5, |out| out.extend_from_slice(&[KEY_UPDATE, 0, 0, 1, 0]))?;
        self.protection = self.shared.next_sealing()?;
        Ok(())
    }

    /// Replaces our key if it has been used for many records, or if the peer has requested it.
    ///
    /// Postponed while the buffer is full, so that a peer that requests keys without reading cannot
    /// make it grow.
    fn update_key_if_due(&mut self) -> Result<(), TrustError> {
        let has_room = self.out.len() <= PENDING_LEN_MAX;
        let is_worn = self.protection.number() >= RECORDS_PER_KEY_MAX;
        if has_room && (self.shared.take_update_wanted() || is_worn) {
            self.update_key()?;
        }
        Ok(())
    }

    /// Moves pending bytes to the front of the buffer, if that frees at least half of it.
    fn make_room(&mut self) {
        if self.out.capacity() < PENDING_LEN_MAX + CONTROL_LEN {
            self.out.reserve_exact(PENDING_LEN_MAX + CONTROL_LEN - self.out.len());
        }
        if self.start > PENDING_LEN_MAX / 2 {
            self.out.drain(..self.start);
            self.start = 0;
        }
    }

    /// Appends one record; `fill` appends its `len` plaintext bytes.
    fn seal(
        &mut self,
        kind: u8,
        len: usize,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TrustError> {
        let sealed_len = u16::try_from(len + RECORD_TAIL_LEN).expect("a record is short");
        let [high, low] = sealed_len.to_be_bytes();
        let head = [DATA, VERSION[0], VERSION[1], high, low];
        self.out.extend_from_slice(&head);
        let start = self.out.len();
        fill(&mut self.out);
        debug_assert_eq!(self.out.len(), start + len, "a record is as long as its head says");
        self.out.push(kind);
        self.out.extend_from_slice(&[0; TAG_LEN]);
        let (inner, tag) = self.out[start..].split_at_mut(len + 1);
        self.protection.seal(head, inner, tag)
    }
}

/// The pieces that have not been consumed yet.
struct Pieces<'a> {
    pieces: &'a [IoSlice<'a>],
    offset: usize,
}

impl Pieces<'_> {
    /// Appends the next `len` bytes, which the pieces must contain.
    fn gather(&mut self, mut len: usize, out: &mut Vec<u8>) {
        while len > 0 {
            let Some((first, rest)) = self.pieces.split_first() else { return };
            let piece = &first[self.offset..];
            let taken = piece.len().min(len);
            out.extend_from_slice(&piece[..taken]);
            len -= taken;
            self.offset += taken;
            if taken == piece.len() {
                (self.pieces, self.offset) = (rest, 0);
            }
        }
    }
}
