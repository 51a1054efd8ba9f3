//! Encryption and decryption of TLS 1.3 records after the handshake.
//!
//! rustls negotiates and derives the keys; ring encrypts and decrypts. This module only implements
//! the record format, sequence numbers and key updates (RFC 8446, sections 5 and 7.2). It does not
//! use the record layer of rustls, for two reasons. First, the two directions share only the key
//! schedule, so the thread that reads a connection and the one that writes it do not wait for each
//! other. Second, unnecessary copies and allocations are avoided: a record is encrypted in the send
//! buffer from any number of pieces, and decrypted where it was received.

mod keys;
mod opener;
mod sealer;

use crate::claim::Peer;
use crate::error::TrustError;
pub(crate) use keys::Schedule;
use keys::{Protection, Shared};
pub use opener::{Opener, RECEIVED_LEN_MAX};
use rustls::ExtractedSecrets;
pub use sealer::{PENDING_LEN_MAX, Sealer};
use std::sync::Arc;

/// The maximum number of plaintext bytes in one record.
pub const PLAIN_LEN_MAX: usize = 1 << 14;
/// The length of a record header: type, version, length.
pub const RECORD_HEAD_LEN: usize = 5;
/// The length of a record trailer: its real type and the authentication tag.
pub const RECORD_TAIL_LEN: usize = 1 + TAG_LEN;

const TAG_LEN: usize = 16;
/// The maximum length of a received record, which may contain padding.
const RECORD_LEN_MAX: usize = RECORD_HEAD_LEN + PLAIN_LEN_MAX + 256;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const VERSION: [u8; 2] = [3, 3];

const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;

/// An authenticated connection. Its two directions are independent.
#[derive(Debug)]
pub struct SecureStream {
    /// The identity of the peer.
    pub peer: Peer,
    /// The receiving direction.
    pub opener: Opener,
    /// The sending direction.
    pub sealer: Sealer,
}

impl SecureStream {
    /// Continues after the handshake, with bytes that were received after it or are not sent yet.
    pub(crate) fn new(
        peer: Peer,
        secrets: ExtractedSecrets,
        schedule: Schedule,
        received: &[u8],
        unsent: &[u8],
    ) -> Result<Self, TrustError> {
        let shared = Arc::new(Shared::new(schedule));
        let opener = Opener::new(Protection::new(secrets.rx)?, Arc::clone(&shared), received);
        let sealer = Sealer::new(Protection::new(secrets.tx)?, shared, unsent);
        Ok(Self { peer, opener, sealer })
    }
}
