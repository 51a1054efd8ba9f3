//! Errors of a handshake and of a connection.

use rustls::AlertDescription;
use thiserror::Error;

/// The reason why a connection cannot be established, or cannot continue.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// rustls refused a message of the handshake, or the peer sent an alert during the handshake.
    #[error(transparent)]
    Handshake(#[from] rustls::Error),
    /// The peer does not speak TLS.
    #[error("the first bytes are not TLS: {first:?}")]
    NotTls {
        /// The first bytes, as escaped text.
        first: String,
    },
    /// The peer sent more bytes than a handshake may have.
    #[error("the handshake has more than {limit} bytes")]
    TooLong {
        /// The maximum number of bytes in a handshake.
        limit: usize,
    },
    /// The connection ended before the handshake was complete, or was closed by this side.
    #[error("the connection is closed")]
    Closed,
    /// The peer ended the connection with an alert other than `close_notify`.
    #[error("the peer sent the alert {0:?}")]
    Alert(AlertDescription),
    /// A record is not encrypted.
    #[error("a record is not encrypted")]
    NotSealed,
    /// A record was modified, repeated, dropped or encrypted with another key.
    #[error("a record failed authentication: it was changed in transit")]
    Tampered,
    /// The peer violates the protocol inside authenticated records.
    #[error("the peer violated the protocol: {0}")]
    Misbehaved(&'static str),
    /// Keys could not be created or used.
    #[error("keys could not be generated or used: {why}")]
    Crypto {
        /// The failed operation.
        why: String,
    },
}

impl TlsError {
    pub(crate) fn crypto(error: impl ToString) -> Self {
        Self::Crypto { why: error.to_string() }
    }
}
