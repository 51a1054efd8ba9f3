//! Bytes sealed with the keys of a TLS 1.3 connection, and opened.
//!
//! rustls makes the keys and proves who is at the other end; the records are laid out here, as
//! RFC 8446 has them, so that a range of memory goes through one buffer that stays in the cache. A
//! record is opened where it was received, and only what is proven gets to the memory of a user.
//!
//! A key is good for [`RECORDS_MAX`] records. Nothing replaces it: a connection that has come near
//! that is not used again, see [`Records::is_worn`].
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

/// The first bytes of a record: what it is, and how long.
pub(crate) const HEAD_LEN: usize = 5;
const TAG_LEN: usize = 16;
/// What a record carries at most.
const PLAIN_LEN_MAX: usize = 1 << 14;
/// What it is longer than that: head, kind, proof.
const EXTRA_LEN: usize = HEAD_LEN + 1 + TAG_LEN;
const RECORD_LEN_MAX: usize = PLAIN_LEN_MAX + EXTRA_LEN;
/// How many records go through the buffer at once: as many as stay in the cache of a core.
const BATCH_LEN: usize = 16;
/// The kinds of records.
const ALERT: u8 = 21;
const BYTES: u8 = 23;
/// How many records a key seals at most; AES-GCM is good for 2^24.5.
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
    /// What was received and not opened yet.
    sealed: Range<usize>,
    /// What was opened and not taken yet.
    plain: Range<usize>,
}

/// Both sides, with the keys of a finished handshake.
pub(crate) fn records(secrets: ExtractedSecrets) -> Result<(Sealer, Opener), SocketError> {
    let sealer = Sealer { key: Key::new(secrets.tx)?, buffer: Vec::new() };
    let buffer = vec![0; RECORD_LEN_MAX];
    let opener = Opener { key: Key::new(secrets.rx)?, buffer, sealed: 0..0, plain: 0..0 };
    Ok((sealer, opener))
}

impl Sealer {
    /// Sends two ranges of memory, one behind the other.
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
                // SAFETY: the caller keeps the body mapped, and the room is ours.
                unsafe { room.copy_from(part) };
                done += plain_len;
                self.key.seal(record)?;
            }
            push(fd, &self.buffer[..sealed_len], NO_BYTES, stop)?;
        }
        Ok(())
    }

    /// Whether the connection should carry no more: half of what the key is good for is used.
    pub(crate) fn is_worn(&self) -> bool {
        self.key.number > RECORDS_MAX / 2
    }
}

impl Opener {
    /// Receives what there is, into two ranges of memory, one behind the other. Gives how much it
    /// was: nothing when the other side has closed.
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
        // SAFETY: the caller keeps the body mapped for writing, and these bytes are ours.
        unsafe { body.copy_from(from) };
        self.plain.start += of_head + of_body;
        Ok(of_head + of_body)
    }

    /// Whether the connection should carry no more.
    pub(crate) fn is_worn(&self) -> bool {
        self.key.number > RECORDS_MAX / 2
    }

    /// Whether bytes have come already that nobody has taken.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.plain.is_empty() || self.record_len().is_ok_and(|len| self.sealed.len() >= len)
    }

    /// Receives until the first record is whole; not, when the other side has closed.
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
            // Nothing opened is left behind: what is not opened goes to the front.
            self.buffer.copy_within(self.sealed.clone(), 0);
            self.sealed = 0..self.sealed.len();
            if len > PLAIN_LEN_MAX && self.buffer.len() == RECORD_LEN_MAX {
                // Full records come where there is much to come.
                self.buffer.resize(BATCH_LEN * RECORD_LEN_MAX, 0);
            }
            let room = &mut self.buffer[self.sealed.end..];
            match pull(fd, room, NO_BYTES, flags, stop)? {
                0 => return Ok(false),
                received => self.sealed.end += received,
            }
        }
    }

    /// How long the first record is, as far as that is known.
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

    /// Opens the first record where it is.
    fn open(&mut self) -> Result<(), SocketError> {
        let start = self.sealed.start;
        let end = start + self.record_len()?;
        let inner_len = self.key.open(&mut self.buffer[start..end])?;
        self.sealed.start = end;
        let inner = start + HEAD_LEN..start + HEAD_LEN + inner_len;
        // We never fill records up, so the last byte is the kind.
        let kind = inner.end - 1;
        match self.buffer[kind] {
            BYTES => self.plain = inner.start..kind,
            ALERT => return Err(SocketError::Closed),
            _ => return Err(SocketError::Strange),
        }
        Ok(())
    }
}

/// The key of one direction, and how many records it was used for.
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

    /// The nonce of the next record: each number is used once, for it never goes back.
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

    /// Makes a record of the bytes behind the place of its head.
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

    /// Opens a record where it is; gives the length of what is behind its head.
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
