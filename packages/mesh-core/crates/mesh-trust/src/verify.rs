//! Verification that a peer's certificate makes it a member of our job.
//!
//! webpki checks the chain of signatures, the validity periods and the purposes, as for any
//! certificate. Instead of a host name, this module verifies the statements of the certificate
//! about its holder: the job must be ours, and the role must be accepted on the connection.

use crate::claim::{Peer, Role, parse_authority_uri};
use crate::encoded::{self, Validity, since};
use crate::error::TrustError;
use crate::identity::Identity;
use mesh_wire::id::JobId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, TrustAnchor, UnixTime};
use std::sync::{Arc, Mutex, PoisonError};
use webpki::ring::ECDSA_P256_SHA256;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// The only signature algorithm that we use, and therefore the only one that we accept.
const SIGNATURES: WebPkiSupportedAlgorithms = WebPkiSupportedAlgorithms {
    all: &[ECDSA_P256_SHA256],
    mapping: &[(SignatureScheme::ECDSA_NISTP256_SHA256, &[ECDSA_P256_SHA256])],
};

/// The maximum number of certificates from a peer: its own and a cross-certificate of its
/// authority.
const CHAIN_LEN_MAX: usize = 2;

/// Extended key usages, as encoded in a certificate.
const SERVER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// The authorities that a member accepts.
#[derive(Debug)]
pub(crate) struct Authorities {
    job: JobId,
    oldest_generation: u64,
    anchors: Vec<(TrustAnchor<'static>, Validity)>,
}

impl Authorities {
    pub(crate) fn new(identity: &Identity) -> Result<Self, webpki::Error> {
        let mut anchors = Vec::new();
        let mut oldest_generation = identity.me().generation();
        for certificate in identity.authorities() {
            let anchor = anchor_from_trusted_cert(certificate)?.to_owned();
            anchors.push((anchor, Validity::of(certificate)?));
            if let Ok((_, generation)) = encoded::read_uri(certificate, parse_authority_uri) {
                oldest_generation = oldest_generation.min(generation);
            }
        }
        Ok(Self { job: identity.me().job(), oldest_generation, anchors })
    }

    /// Verifies everything except the role.
    fn prove(
        &self,
        chain: (&CertificateDer<'_>, &[CertificateDer<'_>]),
        now: UnixTime,
        purpose: &'static [u8],
    ) -> Result<Peer, TrustError> {
        let (certificate, intermediates) = chain;
        let bad = |why: String| TrustError::BadCertificate { why };
        if intermediates.len() >= CHAIN_LEN_MAX {
            return Err(bad(format!("it has {} intermediate certificates", intermediates.len())));
        }
        let leaf = EndEntityCert::try_from(certificate).map_err(|error| bad(error.to_string()))?;
        let peer = encoded::read_uri(certificate, Peer::from_uri).map_err(bad)?;
        // webpki does not check the validity periods of the authorities themselves.
        let is_current = |validity: &Validity| validity.check(now, "").is_ok();
        let anchors: Vec<_> = self.anchors.iter().filter(|(_, one)| is_current(one)).collect();
        let anchors: Vec<_> = anchors.into_iter().map(|(anchor, _)| anchor.clone()).collect();
        let usage = KeyUsage::required(purpose);
        leaf.verify_for_usage(SIGNATURES.all, &anchors, intermediates, now, usage, None, None)
            .map_err(|error| self.explain(&error, &peer))?;
        if peer.job() != self.job {
            return Err(TrustError::OtherJob { theirs: peer.job(), ours: self.job });
        }
        if peer.generation() < self.oldest_generation {
            return Err(self.stale(&peer));
        }
        Ok(peer)
    }

    fn stale(&self, peer: &Peer) -> TrustError {
        TrustError::Stale { theirs: peer.generation(), oldest: self.oldest_generation }
    }

    /// Explains why webpki refused a certificate, using its unverified statements.
    fn explain(&self, error: &webpki::Error, peer: &Peer) -> TrustError {
        use webpki::Error as Why;
        let who = format!("the peer ({peer})");
        match error {
            Why::CertExpired { time, not_after } => {
                TrustError::Expired { who, ago: since(*time, *not_after) }
            }
            Why::CertNotValidYet { time, not_before } => {
                TrustError::NotYetValid { who, ahead: since(*not_before, *time) }
            }
            Why::UnknownIssuer | Why::InvalidSignatureForPublicKey => {
                if peer.job() != self.job {
                    TrustError::OtherJob { theirs: peer.job(), ours: self.job }
                } else if peer.generation() < self.oldest_generation {
                    self.stale(peer)
                } else {
                    TrustError::UnknownAuthority { ours: self.job }
                }
            }
            other => TrustError::BadCertificate { why: other.to_string() },
        }
    }
}

/// Verifies our certificate chain against our authorities.
pub(crate) fn check_own(
    authorities: &Authorities,
    chain: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<(), TrustError> {
    let Some((leaf, rest)) = chain.split_first() else { return Err(TrustError::NoCertificate) };
    authorities.prove((leaf, rest), now, SERVER)?;
    authorities.prove((leaf, rest), now, CLIENT).map(|_| ())
}

/// Verifies the peers of one or several handshakes.
#[derive(Debug)]
pub(crate) struct Verifier {
    pub(crate) authorities: Arc<Authorities>,
    pub(crate) accepts: Arc<[Role]>,
    /// The reason why the last peer was refused. rustls preserves less detail.
    pub(crate) refusal: Mutex<Option<TrustError>>,
}

impl Verifier {
    pub(crate) fn take_refusal(&self) -> Option<TrustError> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn verify(
        &self,
        chain: (&CertificateDer<'_>, &[CertificateDer<'_>]),
        now: UnixTime,
        purpose: &'static [u8],
    ) -> Result<(), Error> {
        let proven = self.authorities.prove(chain, now, purpose).and_then(|peer| {
            if self.accepts.contains(&peer.role()) {
                return Ok(());
            }
            let (role, name) = (peer.role(), peer.name().to_owned());
            Err(TrustError::RoleNotAllowed { role, name, allowed: self.accepts.to_vec() })
        });
        proven.map_err(|refusal| {
            let told = Error::InvalidCertificate(told(&refusal));
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
            told
        })
    }
}

/// The error that is reported to the refused peer; rustls converts it to an alert.
fn told(refusal: &TrustError) -> CertificateError {
    match refusal {
        TrustError::UnknownAuthority { .. } | TrustError::OtherJob { .. } => {
            CertificateError::UnknownIssuer
        }
        TrustError::Stale { .. } => CertificateError::Revoked,
        TrustError::Expired { .. } => CertificateError::Expired,
        TrustError::NotYetValid { .. } => CertificateError::NotValidYet,
        TrustError::RoleNotAllowed { .. } => CertificateError::ApplicationVerificationFailure,
        _ => CertificateError::BadEncoding,
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify((end_entity, intermediates), now, SERVER)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Unauthenticated peers need not learn which job this is.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify((end_entity, intermediates), now, CLIENT)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &SIGNATURES)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        SIGNATURES.supported_schemes()
    }
}
