//! Encryption and decryption of records with the keys of a TLS 1.3 connection.
//!
//! rustls creates the keys and authenticates the peer. The records are built here according to RFC
//! 8446, so that a range of memory passes through a single buffer that stays in the cache. A record
//! is decrypted in place, and only authenticated data reaches the memory of a user.
//!
//! A key can be used for [`RECORDS_MAX`] records and is never replaced: a connection that
//! approaches this limit is closed instead of being reused, see [`Sealer::is_worn`].
#![expect(unsafe_code, reason = "copies between a buffer and memory of the transfer")]

use crate::connection::blocking_io::{SocketError, pull, push};
use crate::span::Span;
use crate::stop::Stop;
use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustix::net::RecvFlags;
use rustls::{ConnectionTrafficSecrets as Secrets, ExtractedSecrets};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The length of a record header, which contains the type and the length of the record.
pub(crate) const HEAD_LEN: usize = 5;
const TAG_LEN: usize = 16;
/// The maximum number of plaintext bytes in a record.
const PLAIN_LEN_MAX: usize = 1 << 14;
/// The overhead of a record: header, content type and authentication tag.
const EXTRA_LEN: usize = HEAD_LEN + 1 + TAG_LEN;
const RECORD_LEN_MAX: usize = PLAIN_LEN_MAX + EXTRA_LEN;
/// The number of records per batch, which fit into the cache of a core.
const BATCH_LEN: usize = 16;
/// The types of records.
const ALERT: u8 = 21;
const BYTES: u8 = 23;
/// The maximum number of records per key; the limit of AES-GCM is 2^24.5.
const RECORDS_MAX: u64 = 1 << 24;
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// The sending side of a connection.
#[derive(Debug)]
pub(crate) struct Sealer {
    key: Key,
    buffer: Vec<u8>,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Opener {
    key: Key,
    buffer: Vec<u8>,
    /// The received bytes that have not been decrypted yet.
    sealed: Range<usize>,
    /// The decrypted bytes that have not been taken yet.
    plain: Range<usize>,
}

/// Creates both sides from the keys of a completed handshake.
pub(crate) fn records(secrets: ExtractedSecrets) -> Result<(Sealer, Opener), SocketError> {
    let sealer = Sealer { key: Key::new(secrets.tx)?, buffer: Vec::new() };
    let buffer = vec![0; RECORD_LEN_MAX];
    let opener = Opener { key: Key::new(secrets.rx)?, buffer, sealed: 0..0, plain: 0..0 };
    Ok((sealer, opener))
}

impl Sealer {
    /// Sends two ranges of memory in sequence.
    pub(crate) fn push(
        &mut self,
        fd: BorrowedFd<'_>,
        head: &[u8],
        body: Span,
        stop: Option<&Stop>,
    ) -> Result<(), SocketError> {
        let len = head.len() + body.len;
        let mut done = 0;
        while done < len {
            let batch = (len - done).min(BATCH_LEN * PLAIN_LEN_MAX);
            let sealed_len = batch + batch.div_ceil(PLAIN_LEN_MAX) * EXTRA_LEN;
            if self.buffer.len() < sealed_len {
                self.buffer.resize(sealed_len, 0);
            }
            for record in self.buffer[..sealed_len].chunks_mut(RECORD_LEN_MAX) {
                let plain_len = record.len() - EXTRA_LEN;
                let plain = &mut record[HEAD_LEN..HEAD_LEN + plain_len];
                let of_head = head.get(done..).unwrap_or_default();
                let of_head = &of_head[..of_head.len().min(plain_len)];
                let (first, rest) = plain.split_at_mut(of_head.len());
                first.copy_from_slice(of_head);
                let at = (done + of_head.len()).saturating_sub(head.len());
                let part = body.part(at, rest.len()).expect("the records are as long as the bytes");
                let room = Span { start: rest.as_mut_ptr() as usize, len: rest.len() };
                // SAFETY: the caller keeps the body mapped, and the room is in the buffer of
                // `self`.
                unsafe { room.copy_from(part) };
                done += plain_len;
                self.key.seal(record)?;
            }
            push(fd, &self.buffer[..sealed_len], NO_BYTES, stop)?;
        }
        Ok(())
    }

    /// Whether the connection should be replaced, because half of the records of its key are used.
    pub(crate) fn is_worn(&self) -> bool {
        self.key.number > RECORDS_MAX / 2
    }
}

impl Opener {
    /// Receives available bytes into two ranges of memory in sequence. Returns their number, which
    /// is zero if the other side has closed the connection.
    pub(crate) fn pull(
        &mut self,
        fd: BorrowedFd<'_>,
        head: &mut [u8],
        body: Span,
        flags: RecvFlags,
        stop: Option<&Stop>,
    ) -> Result<usize, SocketError> {
        while self.plain.is_empty() {
            if !self.fill(fd, flags, stop)? {
                return Ok(0);
            }
            self.open()?;
        }
        let of_head = head.len().min(self.plain.len());
        let of_body = body.len.min(self.plain.len() - of_head);
        let plain = &self.buffer[self.plain.clone()];
        head[..of_head].copy_from_slice(&plain[..of_head]);
        let rest = &plain[of_head..of_head + of_body];
        let from = Span { start: rest.as_ptr() as usize, len: rest.len() };
        // SAFETY: the caller keeps the body mapped for writing, and `from` is in the buffer of
        // `self`.
        unsafe { body.copy_from(from) };
        self.plain.start += of_head + of_body;
        Ok(of_head + of_body)
    }

    /// Whether the connection should be replaced, because half of the records of its key are used.
    pub(crate) fn is_worn(&self) -> bool {
        self.key.number > RECORDS_MAX / 2
    }

    /// Whether bytes have arrived that have not been taken.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.plain.is_empty() || self.record_len().is_ok_and(|len| self.sealed.len() >= len)
    }

    /// Receives until the first record is complete; returns false if the other side has closed the
    /// connection.
    fn fill(
        &mut self,
        fd: BorrowedFd<'_>,
        flags: RecvFlags,
        stop: Option<&Stop>,
    ) -> Result<bool, SocketError> {
        loop {
            let len = self.record_len()?;
            if self.sealed.len() >= len {
                return Ok(true);
            }
            // All decrypted bytes have been taken, so the remaining bytes can move to the front.
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
            if len > PLAIN_LEN_MAX && self.buffer.len() == RECORD_LEN_MAX {
                // A full record indicates that more data follows, so the buffer grows.
                self.buffer.resize(BATCH_LEN * RECORD_LEN_MAX, 0);
            }
            let room = &mut self.buffer[self.sealed.end..];
            match pull(fd, room, NO_BYTES, flags, stop)? {
                0 => return Ok(false),
                received => self.sealed.end += received,
            }
        }
    }

    /// The length of the first record, or of its header if that is not complete.
    fn record_len(&self) -> Result<usize, SocketError> {
        let Some(head) = self.buffer[self.sealed.clone()].first_chunk::<HEAD_LEN>() else {
            return Ok(HEAD_LEN);
        };
        let len = HEAD_LEN + usize::from(u16::from_be_bytes([head[3], head[4]]));
        let is_record = head[..3] == [BYTES, 3, 3];
        if is_record && (EXTRA_LEN..=RECORD_LEN_MAX).contains(&len) {
            return Ok(len);
        }
        Err(unproven())
    }

    /// Decrypts the first record in place.
    fn open(&mut self) -> Result<(), SocketError> {
        let start = self.sealed.start;
        let end = start + self.record_len()?;
        let inner_len = self.key.open(&mut self.buffer[start..end])?;
        self.sealed.start = end;
        let inner = start + HEAD_LEN..start + HEAD_LEN + inner_len;
        // Records are never padded, so the last byte is the content type.
        let kind = inner.end - 1;
        match self.buffer[kind] {
            BYTES => self.plain = inner.start..kind,
            ALERT => return Err(SocketError::Closed),
            _ => return Err(SocketError::Strange),
        }
        Ok(())
    }
}

/// The key of one direction, and the number of records for which it was used.
struct Key {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

impl Key {
    fn new((number, secrets): (u64, Secrets)) -> Result<Self, SocketError> {
        let (algorithm, key, iv) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(SocketError::Unproven("it chose another algorithm".to_owned())),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(|_| unproven())?;
        let iv = iv.as_ref().try_into().map_err(|_| unproven())?;
        Ok(Self { key: LessSafeKey::new(key), iv, number })
    }

    /// The nonce of the next record. Each number is used once, because it only increases.
    fn next_nonce(&mut self) -> Result<Nonce, SocketError> {
        if self.number >= RECORDS_MAX {
            return Err(io::Error::other("its key has been used for 2^24 records").into());
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts the bytes after the header of a record, and writes the header.
    fn seal(&mut self, record: &mut [u8]) -> Result<(), SocketError> {
        let len = u16::try_from(record.len() - HEAD_LEN).expect("a record is short");
        let [high, low] = len.to_be_bytes();
        let head = [BYTES, 3, 3, high, low];
        let nonce = self.next_nonce()?;
        let (inner, tag) = record.split_at_mut(record.len() - TAG_LEN);
        inner[..HEAD_LEN].copy_from_slice(&head);
        *inner.last_mut().expect("a record has a kind") = BYTES;
        let sealed =
            self.key.seal_in_place_separate_tag(nonce, Aad::from(head), &mut inner[HEAD_LEN..]);
        tag.copy_from_slice(sealed.map_err(|_| unproven())?.as_ref());
        Ok(())
    }

    /// Decrypts a record in place; returns the length of the data after its header.
    fn open(&mut self, record: &mut [u8]) -> Result<usize, SocketError> {
        let nonce = self.next_nonce()?;
        let (head, sealed) = record.split_at_mut(HEAD_LEN);
        let opened = self.key.open_in_place(nonce, Aad::from(&*head), sealed);
        opened.map(|inner| inner.len()).map_err(|_| unproven())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("number", &self.number).finish_non_exhaustive()
    }
}

fn unproven() -> SocketError {
    SocketError::Unproven("what it sent was changed on the way".to_owned())
}
