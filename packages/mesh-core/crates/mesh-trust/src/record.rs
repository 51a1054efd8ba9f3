//! The bytes of a link after its handshake: TLS 1.3 records, sealed and opened.
//!
//! rustls has agreed on the keys and derives new ones; ring seals and opens. What is here is only
//! how a record is laid out, which number it has, and when its keys are replaced (RFC 8446, 5 and
//! 7.2). It is done here, not in rustls, for two reasons. The two directions have nothing in common
//! but the replacing of keys, so the thread that reads a link and the one that writes it need not
//! wait for each other. And nothing is copied or allocated that need not be: a record is sealed
//! where it is sent from, out of as many pieces as it has, and opened where it was received.

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

/// The most plain bytes in one record.
pub const PLAIN_LEN_MAX: usize = 1 << 14;
/// What stands before a record: type, version, length.
pub const RECORD_HEAD_LEN: usize = 5;
/// What stands behind a record: its real type, and the proof that nobody changed it.
pub const RECORD_TAIL_LEN: usize = 1 + TAG_LEN;

const TAG_LEN: usize = 16;
/// The longest record that a peer may send: it may pad.
const RECORD_LEN_MAX: usize = RECORD_HEAD_LEN + PLAIN_LEN_MAX + 256;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const VERSION: [u8; 2] = [3, 3];

const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;

/// A link whose two sides have proved themselves. Its two directions are independent.
#[derive(Debug)]
pub struct SecureStream {
    /// Who is at the other end.
    pub peer: Peer,
    /// What comes in.
    pub opener: Opener,
    /// What goes out.
    pub sealer: Sealer,
}

impl SecureStream {
    /// Goes on where the handshake ended, with bytes that came behind it or are not sent yet.
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
