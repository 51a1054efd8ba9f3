//! The key of one direction, and key updates.

use super::{RECORD_HEAD_LEN, TAG_LEN};
use crate::error::TlsError;
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use rustls::ConnectionTrafficSecrets as Secrets;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// The maximum number of records per key. AES-GCM is safe for 2^24.5 full ones (RFC 8446, 5.5).
pub(super) const RECORDS_PER_KEY_MAX: u64 = 1 << 23;

/// A key and the number of records it has been used for.
pub(super) struct Protection {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

impl Protection {
    pub(super) fn new((number, secrets): (u64, Secrets)) -> Result<Self, TlsError> {
        let (algorithm, key, iv) = match &secrets {
            Secrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            Secrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            Secrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(TlsError::crypto("unknown algorithm")),
        };
        let key = UnboundKey::new(algorithm, key.as_ref()).map_err(TlsError::crypto)?;
        let iv = iv.as_ref().try_into().map_err(TlsError::crypto)?;
        Ok(Self { key: LessSafeKey::new(key), iv, number })
    }

    /// The number of records that the key has been used for.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the nonce of the next record. Each number is used once: it never decreases, and a
    /// key is refused when its numbers are exhausted.
    fn next_nonce(&mut self) -> Option<Nonce> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number = self.number.checked_add(1)?;
        Some(Nonce::assume_unique_for_key(nonce))
    }

    /// Encrypts `inner` in place and writes the authentication tag to `tag`.
    pub(super) fn seal(
        &mut self,
        head: [u8; RECORD_HEAD_LEN],
        inner: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), TlsError> {
        let nonce = self.next_nonce().ok_or_else(|| TlsError::crypto("too many records"))?;
        let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(head), inner);
        tag[..TAG_LEN].copy_from_slice(sealed.map_err(TlsError::crypto)?.as_ref());
        Ok(())
    }

    /// Decrypts in place. Returns the length of the content.
    pub(super) fn open(
        &mut self,
        head: [u8; RECORD_HEAD_LEN],
        sealed: &mut [u8],
    ) -> Result<usize, TlsError> {
        let nonce = self.next_nonce().ok_or_else(|| TlsError::crypto("too many records"))?;
        let opened = self.key.open_in_place(nonce, Aad::from(head), sealed);
        opened.map(|inner| inner.len()).map_err(|_| TlsError::Tampered)
    }
}

impl fmt::Debug for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protection").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The key schedule of rustls, which derives the next keys.
pub(crate) enum Schedule {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The state that the two directions share. It is accessed only when a key is replaced.
pub(super) struct Shared {
    schedule: Mutex<Schedule>,
    /// Whether the peer has requested a new key from us.
    is_update_wanted: AtomicBool,
}

impl Shared {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self { schedule: Mutex::new(schedule), is_update_wanted: AtomicBool::new(false) }
    }

    pub(super) fn want_update(&self) {
        self.is_update_wanted.store(true, Ordering::Relaxed);
    }

    pub(super) fn take_update_wanted(&self) -> bool {
        self.is_update_wanted.load(Ordering::Relaxed)
            && self.is_update_wanted.swap(false, Ordering::Relaxed)
    }

    pub(super) fn next_sealing(&self) -> Result<Protection, TlsError> {
        let mut schedule = self.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let secrets = match &mut *schedule {
            Schedule::Client(kernel) => kernel.update_tx_secret(),
            Schedule::Server(kernel) => kernel.update_tx_secret(),
        };
        Protection::new(secrets.map_err(TlsError::crypto)?)
    }

    pub(super) fn next_opening(&self) -> Result<Protection, TlsError> {
        let mut schedule = self.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let secrets = match &mut *schedule {
            Schedule::Client(kernel) => kernel.update_rx_secret(),
            Schedule::Server(kernel) => kernel.update_rx_secret(),
        };
        Protection::new(secrets.map_err(TlsError::crypto)?)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
