//! Encryption and decryption of TLS 1.3 records after the handshake.
//!
//! rustls negotiates and derives the keys; ring encrypts and decrypts. This module only implements
//! the record format, sequence numbers and key updates (RFC 8446, sections 5 and 7.2). It does not
//! use the record layer of rustls, for two reasons. First, the two directions share only the key
//! schedule, so the threads that read and write a connection do not wait for each other. Second,
//! unnecessary copies and allocations are avoided: a record is encrypted in the send buffer from
//! any number of pieces, and decrypted where it was received.

mod keys;
mod opener;
mod sealer;

use crate::error::TlsError;
pub(crate) use keys::Schedule;
use keys::{Protection, Shared};
pub use opener::Opener;
use rustls::ExtractedSecrets;
pub use sealer::Sealer;
use std::sync::Arc;

/// The maximum number of plaintext bytes in one record.
pub const PLAIN_LEN_MAX: usize = 1 << 14;
/// The length of a record header: type, version, length.
pub const RECORD_HEAD_LEN: usize = 5;
/// The length of a record trailer: its real type and the authentication tag.
pub const RECORD_TAIL_LEN: usize = 1 + TAG_LEN;
/// The maximum length of a record that a [`Sealer`] writes.
pub const SEALED_LEN_MAX: usize = RECORD_HEAD_LEN + PLAIN_LEN_MAX + RECORD_TAIL_LEN;
/// The maximum length of a received record, which may contain padding.
pub const RECORD_LEN_MAX: usize = RECORD_HEAD_LEN + PLAIN_LEN_MAX + 256;

const TAG_LEN: usize = 16;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const VERSION: [u8; 2] = [3, 3];

const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;

/// Continues after the handshake, with bytes that were received after it or are not sent yet.
///
/// Each direction buffers at most `records_max` records of maximum length.
pub(crate) fn directions(
    secrets: ExtractedSecrets,
    schedule: Schedule,
    (received, unsent): (Vec<u8>, Vec<u8>),
    records_max: usize,
) -> Result<(Sealer, Opener), TlsError> {
    let shared = Arc::new(Shared::new(schedule));
    let sealing = Protection::new(secrets.tx)?;
    let opening = Protection::new(secrets.rx)?;
    let sealer = Sealer::new(sealing, Arc::clone(&shared), unsent, records_max);
    Ok((sealer, Opener::new(opening, shared, received, records_max)))
}
