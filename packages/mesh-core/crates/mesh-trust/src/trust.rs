//! The credentials that a process presents to its peers, and the peers that it accepts.

use crate::claim::{Peer, Role};
use crate::encoded;
use crate::error::TrustError;
use crate::handshake::Handshake;
use crate::identity::Identity;
use crate::verify::{Authorities, Verifier};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{ClientConfig, CommonState, ServerConfig};
use rustls_pki_types::{ServerName, UnixTime};
use std::sync::{Arc, Mutex};

/// The ALPN protocol that both sides use over TLS.
pub const PROTOCOL: &[u8] = b"mesh/1";

/// An identity that is prepared for handshakes. Cloning it is cheap.
///
/// When an identity is replaced, create a new `Trust`: existing connections stay open, and new ones
/// use the new identity.
#[derive(Clone, Debug)]
pub struct Trust {
    key: Arc<SingleCertAndKey>,
    provider: Arc<CryptoProvider>,
    authorities: Arc<Authorities>,
    accepts: Arc<[Role]>,
    clock: Arc<dyn TimeProvider>,
}

impl Trust {
    /// Prepares an identity for handshakes with peers of the same job in one of the roles.
    ///
    /// # Errors
    /// [`TrustError::Expired`] or [`TrustError::NotYetValid`] if the identity is not valid
    /// according to this host's clock, because no peer would accept it.
    pub fn new(identity: &Identity, accepts: &[Role]) -> Result<Self, TrustError> {
        Self::with_clock(identity, accepts, Arc::new(DefaultTimeProvider))
    }

    /// Creates a `Trust` like [`Trust::new`], with another clock.
    ///
    /// # Errors
    /// See [`Trust::new`].
    pub fn with_clock(
        identity: &Identity,
        accepts: &[Role],
        clock: Arc<dyn TimeProvider>,
    ) -> Result<Self, TrustError> {
        identity.check(clock.current_time().unwrap_or_else(UnixTime::now))?;
        let authorities = Authorities::new(identity).map_err(TrustError::crypto)?;
        Ok(Self {
            key: Arc::new(SingleCertAndKey::from(identity.certified())),
            provider: Arc::new(provider()),
            authorities: Arc::new(authorities),
            accepts: accepts.into(),
            clock,
        })
    }

    /// Starts the handshake of a connection that a peer has opened.
    ///
    /// It uses almost no memory until the peer has sent its first handshake message.
    pub fn accept(&self) -> Handshake {
        Handshake::server(self.clone())
    }

    /// Starts the handshake of a connection that this process has opened.
    ///
    /// # Errors
    /// [`TrustError::Crypto`] if the system provides no randomness.
    pub fn connect(&self) -> Result<Handshake, TrustError> {
        Handshake::client(self)
    }

    /// The rustls configuration for accepting connections, for callers that use rustls directly.
    ///
    /// # Errors
    /// [`TrustError::Crypto`] if rustls does not support our choice of algorithms.
    pub fn server_config(&self) -> Result<ServerConfig, TrustError> {
        self.server_config_with(self.verifier())
    }

    /// The rustls configuration for opening connections, for callers that use rustls directly.
    ///
    /// # Errors
    /// See [`Trust::server_config`].
    pub fn client_config(&self) -> Result<ClientConfig, TrustError> {
        self.client_config_with(self.verifier())
    }

    pub(crate) fn verifier(&self) -> Arc<Verifier> {
        let authorities = Arc::clone(&self.authorities);
        let accepts = Arc::clone(&self.accepts);
        Arc::new(Verifier { authorities, accepts, refusal: Mutex::new(None) })
    }

    pub(crate) fn server_config_with(
        &self,
        verifier: Arc<Verifier>,
    ) -> Result<ServerConfig, TrustError> {
        let (provider, clock) = (Arc::clone(&self.provider), Arc::clone(&self.clock));
        let mut config = ServerConfig::builder_with_details(provider, clock)
            .with_protocol_versions(&[&TLS13])
            .map_err(TrustError::crypto)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.key.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        config.enable_secret_extraction = true;
        Ok(config)
    }

    pub(crate) fn client_config_with(
        &self,
        verifier: Arc<Verifier>,
    ) -> Result<ClientConfig, TrustError> {
        let (provider, clock) = (Arc::clone(&self.provider), Arc::clone(&self.clock));
        let mut config = ClientConfig::builder_with_details(provider, clock)
            .with_protocol_versions(&[&TLS13])
            .map_err(TrustError::crypto)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(self.key.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        config.enable_early_data = false;
        config.enable_secret_extraction = true;
        Ok(config)
    }
}

/// The server name that rustls requires. It is neither sent nor verified.
pub fn server_name() -> ServerName<'static> {
    ServerName::try_from("mesh").expect("a valid name")
}

/// The identity of the peer, once rustls has completed the handshake.
///
/// # Errors
/// [`TrustError::NoCertificate`] before that; [`TrustError::OtherTls`] if the peer did not select
/// our protocol.
pub fn peer_of(connection: &CommonState) -> Result<Peer, TrustError> {
    if connection.is_handshaking() {
        return Err(TrustError::NoCertificate);
    }
    if connection.alpn_protocol() != Some(PROTOCOL) {
        return Err(TrustError::OtherTls { why: "it offers no protocol of Mesh".to_owned() });
    }
    let certificates = connection.peer_certificates().unwrap_or_default();
    let certificate = certificates.first().ok_or(TrustError::NoCertificate)?;
    encoded::read_uri(certificate, Peer::from_uri).map_err(|why| TrustError::BadCertificate { why })
}

/// The cipher suites in order of preference: AES is fastest on most machines, and ChaCha20 is for
/// machines without AES instructions.
fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites =
        vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    provider
}
