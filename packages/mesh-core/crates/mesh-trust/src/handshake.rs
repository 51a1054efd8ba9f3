//! The handshake of a connection, until both sides are authenticated.

use crate::claim::Peer;
use crate::error::TrustError;
use crate::secure_stream::{RECORDS_MAX, SecureStream};
use crate::trust::{Trust, peer_of, server_name};
use crate::verify::Verifier;
use mesh_tls::TlsError;
pub use mesh_tls::handshake::HANDSHAKE_LEN_MAX;
use std::sync::Arc;
use std::time::Duration;

/// The time limit that the caller should set for a handshake; see [`Handshake::too_slow`].
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// One side of a handshake, independent of sockets.
///
/// Pass the bytes from the socket to [`Handshake::feed`]. Then write [`Handshake::pending`] to the
/// socket, even after an error, so that the peer learns why it is refused. When
/// [`Handshake::is_done`] returns true, [`Handshake::finish`] converts the handshake to a
/// connection.
///
/// The caller enforces deadlines and limits: it drops a handshake that is not done after
/// [`HANDSHAKE_TIME_MAX`], no matter how many bytes have arrived, and bounds the number of
/// concurrent handshakes.
#[derive(Debug)]
pub struct Handshake {
    tls: mesh_tls::Handshake,
    verifier: Arc<Verifier>,
    /// The identity of the peer once it is authenticated, or the reason why the handshake failed.
    outcome: Option<Result<Peer, TrustError>>,
}

impl Handshake {
    pub(crate) fn server(trust: Trust) -> Self {
        let verifier = trust.verifier();
        let ours = Arc::clone(&verifier);
        let tls = mesh_tls::Handshake::server(move || {
            let config = trust.server_config_with(ours);
            config.map(Arc::new).map_err(|error| TlsError::Crypto { why: error.to_string() })
        });
        Self { tls, verifier, outcome: None }
    }

    pub(crate) fn client(trust: &Trust) -> Result<Self, TrustError> {
        let verifier = trust.verifier();
        let config = Arc::new(trust.client_config_with(Arc::clone(&verifier))?);
        let tls = mesh_tls::Handshake::client(config, server_name())?;
        Ok(Self { tls, verifier, outcome: None })
    }

    /// Consumes all of these bytes from the peer.
    ///
    /// Bytes after the handshake are the first of the connection and are kept for it. Call
    /// [`Handshake::finish`] before reading more.
    ///
    /// # Errors
    /// The reason why the peer is refused, or why it refuses us. Close the connection after sending
    /// [`Handshake::pending`].
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), TrustError> {
        if let Some(Err(error)) = &self.outcome {
            return Err(error.clone());
        }
        let fed = self.tls.feed(bytes).map_err(|error| self.explain(error));
        let outcome = match (fed, self.tls.connection()) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(connection)) => peer_of(connection),
            (Ok(()), None) => return Ok(()),
        };
        let refusal = outcome.as_ref().err().cloned();
        self.outcome = Some(outcome);
        refusal.map_or(Ok(()), Err)
    }

    /// The bytes to send to the peer.
    pub fn pending(&self) -> &[u8] {
        self.tls.pending()
    }

    /// Reports that `len` bytes of [`Handshake::pending`] were sent.
    ///
    /// # Panics
    /// If [`Handshake::pending`] has fewer bytes.
    pub fn sent(&mut self, len: usize) {
        self.tls.sent(len);
    }

    /// Whether both sides are authenticated, as far as this side knows.
    ///
    /// A client knows that its server is a member of the job. It learns only from the first bytes
    /// of the connection whether the server accepts it.
    pub fn is_done(&self) -> bool {
        self.peer().is_some()
    }

    /// The identity of the peer, once it is authenticated.
    pub fn peer(&self) -> Option<&Peer> {
        self.outcome.as_ref().and_then(|outcome| outcome.as_ref().ok())
    }

    /// The error to report when the socket was closed.
    pub fn closed(&self) -> TrustError {
        if let Some(Err(error)) = &self.outcome { error.clone() } else { TrustError::Closed }
    }

    /// The error to report when the time limit has expired.
    pub fn too_slow(&self, limit: Duration) -> TrustError {
        TrustError::TooSlow { limit }
    }

    /// Creates the connection. The bytes in [`Handshake::pending`] become its first.
    ///
    /// # Errors
    /// [`TrustError::Closed`] if the handshake is not done, or the error that ended it.
    pub fn finish(self) -> Result<SecureStream, TrustError> {
        let peer = self.outcome.unwrap_or(Err(TrustError::Closed))?;
        let (sealer, opener) = self.tls.finish(RECORDS_MAX)?;
        Ok(SecureStream { peer, opener, sealer })
    }

    /// Converts an error to the reason why our verifier has refused the peer, if it has.
    fn explain(&self, error: TlsError) -> TrustError {
        match error {
            TlsError::Handshake(_) => self.verifier.take_refusal().unwrap_or_else(|| error.into()),
            _ => error.into(),
        }
    }
}
