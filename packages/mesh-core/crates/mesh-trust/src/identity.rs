//! The credentials of one process, and the authorities that it accepts.

use crate::claim::{Peer, parse_authority_uri};
use crate::encoded::{self, Validity};
use crate::error::TrustError;
use crate::verify::{self, Authorities};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The maximum number of authorities that a member accepts: the newest and its predecessor.
pub const AUTHORITIES_MAX: usize = 2;

/// A certificate with its key, and the authorities of its job.
#[derive(Clone)]
pub struct Identity {
    me: Peer,
    validity: Validity,
    key: Zeroizing<Vec<u8>>,
    /// Our certificate, and the cross-certificate with which members of the previous generation
    /// verify it.
    chain: Vec<CertificateDer<'static>>,
    /// The accepted authorities, newest first.
    authorities: Vec<CertificateDer<'static>>,
    certified: Arc<CertifiedKey>,
}

impl Identity {
    /// Creates an identity and checks that its parts are consistent.
    pub(crate) fn new(
        key: Zeroizing<Vec<u8>>,
        chain: Vec<CertificateDer<'static>>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let Some(leaf) = chain.first() else { return Err("it contains no certificate".to_owned()) };
        if !(1..=AUTHORITIES_MAX).contains(&authorities.len()) {
            return Err(format!("it contains {} authorities, not 1 or 2", authorities.len()));
        }
        let me = encoded::read_uri(leaf, Peer::from_uri)?;
        for authority in &authorities {
            let (job, generation) = encoded::read_uri(authority, parse_authority_uri)?;
            if job != me.job() || generation > me.generation() {
                return Err("its authorities are not those of its certificate".to_owned());
            }
        }
        let validity = Validity::of(leaf).map_err(|error| error.to_string())?;
        let pkcs8 = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.as_slice()));
        let signing_key = any_ecdsa_type(&pkcs8).map_err(|error| error.to_string())?;
        let certified = CertifiedKey::new(chain.clone(), signing_key);
        certified.keys_match().map_err(|_| "its key is not that of its certificate".to_owned())?;
        let identity = Self { me, validity, key, chain, authorities, certified: certified.into() };
        let believed = Authorities::new(&identity).map_err(|error| error.to_string())?;
        let verified = verify::check_own(&believed, &identity.chain, validity.not_before);
        verified.map(|()| identity).map_err(|_| "its authority did not sign it".to_owned())
    }

    /// The identity that the certificate proves.
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// The time at which the identity expires.
    pub fn expires_at(&self) -> UnixTime {
        self.validity.not_after
    }

    /// The time at which to replace the identity: after two thirds of its lifetime.
    pub fn renew_at(&self) -> UnixTime {
        self.validity.renew_at()
    }

    /// The certificates of the accepted authorities, newest first.
    pub fn authorities(&self) -> &[CertificateDer<'static>] {
        &self.authorities
    }

    /// Returns an error if the identity has expired or is not valid yet, because no peer would
    /// accept it.
    ///
    /// # Errors
    /// [`TrustError::Expired`] or [`TrustError::NotYetValid`].
    pub fn check(&self, now: UnixTime) -> Result<(), TrustError> {
        self.validity.check(now, &format!("this process ({})", self.me))
    }

    /// Encodes the identity and its key as text. Store it in a file that no other user can read, or
    /// send it to its holder over an authenticated connection.
    pub fn to_pem(&self) -> Zeroizing<String> {
        encoded::to_text(&self.key, self.chain.iter().chain(&self.authorities))
    }

    /// Encodes the key, the holder's certificates and the authorities' certificates as separate
    /// texts, in the form that other TLS stacks expect.
    pub fn to_pems(&self) -> (Zeroizing<String>, String, String) {
        let certificates = |some: &[CertificateDer<'static>]| encoded::certificates_to_text(some);
        let key = encoded::to_text(&self.key, []);
        (key, certificates(&self.chain), certificates(&self.authorities))
    }

    /// Decodes the result of [`Identity::to_pem`].
    ///
    /// # Errors
    /// [`TrustError::Malformed`] if the text is anything else.
    pub fn from_pem(text: &str) -> Result<Self, TrustError> {
        Self::parse(text).map_err(|why| TrustError::malformed("the identity", why))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (key, certificates) = encoded::from_text(text)?;
        let (authorities, chain) = certificates.into_iter().partition(encoded::is_own_issuer);
        Self::new(key, chain, authorities)
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Identity");
        out.field("me", &self.me).field("expires_at", &self.expires_at().as_secs());
        out.finish_non_exhaustive()
    }
}
