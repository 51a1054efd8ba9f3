//! The identity of this process on a network, and its verification by clients.
//!
//! A handle is sent over connections that are already authenticated and encrypted, and contains the
//! fingerprint of its owner's certificate. Therefore, the certificate is self-signed, and its names
//! have no meaning. It is created when a process starts to listen, and exists as long as the
//! process. A client trusts this fingerprint only, and then presents the secret that it received
//! with it.

use crate::error::DataError;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::ring::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::version::TLS13;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, PeerIncompatible, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The SHA-256 hash of a certificate.
pub(crate) type Fingerprint = [u8; 32];

/// The ALPN name of the protocol inside TLS.
const PROTOCOL: &[u8] = b"mesh-rdma";

/// A self-signed certificate of this process, and the server configuration that uses it.
pub(crate) struct Identity {
    /// The fingerprint by which clients identify the process.
    pub(crate) fingerprint: Fingerprint,
    /// The server configuration.
    pub(crate) config: Arc<ServerConfig>,
}

impl Identity {
    /// Creates a new key, and a certificate for it.
    pub(crate) fn make() -> Result<Self, DataError> {
        let made = || -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
            let certificate = CertificateParams::default().self_signed(&key)?;
            let certificate = certificate.der().clone();
            let key = PrivateKeyDer::try_from(key.serialize_der())?;
            let fingerprint = fingerprint_of(&certificate);
            let mut config = ServerConfig::builder_with_provider(provider())
                .with_protocol_versions(&[&TLS13])?
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key)?;
            config.alpn_protocols = vec![PROTOCOL.to_vec()];
            config.send_tls13_tickets = 0;
            config.enable_secret_extraction = true;
            Ok(Self { fingerprint, config: Arc::new(config) })
        };
        made().map_err(io::Error::other).map_err(DataError::system("cannot make a certificate"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// The client configuration for the one process that has this fingerprint.
pub(crate) fn client_config(fingerprint: Fingerprint) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let pin = Pin { fingerprint, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pin))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// The server name that rustls requires; it is not verified.
pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("mesh-rdma").expect("a valid name")
}

/// A verifier that trusts a single certificate.
#[derive(Debug)]
struct Pin {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // Both values are public, so the comparison need not take constant time.
        if fingerprint_of(certificate) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

fn fingerprint_of(certificate: &CertificateDer<'_>) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(digest(&SHA256, certificate).as_ref());
    fingerprint
}

/// The cipher suites: the fastest one on most machines first, then one for machines without AES
/// instructions.
fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..default_provider() })
}
