//! The certificate authority of one job, which signs the certificates of its members.

use crate::claim::{Peer, Role, authority_uri, job_text, parse_authority_uri};
use crate::encoded::{self, Validity, at, since};
use crate::error::TrustError;
use crate::identity::Identity;
use mesh_wire::id::JobId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use std::fmt;
use std::time::Duration;
use time::OffsetDateTime;
use zeroize::Zeroizing;

/// The default lifetime of an authority: 7 days.
pub const VALID_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The minimum lifetime of an authority.
pub const VALID_FOR_MIN: Duration = Duration::from_secs(60);
/// The maximum lifetime of an authority.
pub const VALID_FOR_MAX: Duration = Duration::from_secs(3660 * 24 * 3600);
/// The tolerated clock skew: certificates are valid from this long before they were issued.
pub const CLOCK_SKEW_MAX: Duration = Duration::from_secs(300);

/// A certificate authority that signs short-lived certificates for one job.
///
/// Its key never leaves the process or the folder of the user who runs the job.
#[derive(Clone)]
pub struct Authority {
    job: JobId,
    generation: u64,
    validity: Validity,
    key: Zeroizing<Vec<u8>>,
    certificate: CertificateDer<'static>,
    previous: Option<Previous>,
}

/// The predecessor of an authority.
#[derive(Clone)]
struct Previous {
    certificate: CertificateDer<'static>,
    /// Our certificate, signed by the previous authority. Members that do not know our authority
    /// yet can use it to verify the certificates that we sign.
    cross: CertificateDer<'static>,
}

/// Generates a random id for a new job, which is unique and cannot be guessed.
///
/// # Errors
/// [`TrustError::Crypto`] if the system provides no randomness.
pub fn random_job() -> Result<JobId, TrustError> {
    let mut id = [0; 16];
    SystemRandom::new().fill(&mut id).map_err(|_| TrustError::crypto("no randomness"))?;
    Ok(JobId(id))
}

impl Authority {
    /// Creates the first authority of a job.
    ///
    /// # Errors
    /// [`TrustError::Lifetime`] if the lifetime is too short or too long.
    pub fn create(job: JobId, valid_for: Duration, now: UnixTime) -> Result<Self, TrustError> {
        Self::of_generation(job, 1, valid_for, now)
    }

    fn of_generation(
        job: JobId,
        generation: u64,
        valid_for: Duration,
        now: UnixTime,
    ) -> Result<Self, TrustError> {
        if !(VALID_FOR_MIN..=VALID_FOR_MAX).contains(&valid_for) {
            return Err(TrustError::Lifetime { valid_for });
        }
        let not_before = at(now.as_secs().saturating_sub(CLOCK_SKEW_MAX.as_secs()).max(1));
        let validity = Validity { not_before, not_after: at(now.as_secs() + valid_for.as_secs()) };
        let key = new_key()?;
        let params = authority_params(job, generation, validity)?;
        let certificate = params.self_signed(&key).map_err(TrustError::crypto)?.der().clone();
        let key = Zeroizing::new(key.serialize_der());
        Ok(Self { job, generation, validity, key, certificate, previous: None })
    }

    /// Creates the successor of this authority, with a new key and the next generation.
    ///
    /// Until the old authority expires, or [`Authority::forget_previous`] is called, members of
    /// both generations accept each other. Their certificates can therefore be replaced one at a
    /// time while connections stay open. The predecessor of the old authority is no longer
    /// accepted.
    ///
    /// # Errors
    /// [`TrustError::Lifetime`] as in [`Authority::create`]; [`TrustError::Expired`] if this
    /// authority has expired, because peers no longer accept its signatures.
    pub fn rotate(&self, valid_for: Duration, now: UnixTime) -> Result<Self, TrustError> {
        self.check(now)?;
        let mut next = Self::of_generation(self.job, self.generation + 1, valid_for, now)?;
        let mut validity = next.validity;
        validity.not_after = validity.not_after.min(self.validity.not_after);
        let params = authority_params(next.job, next.generation, validity)?;
        let cross = self.sign(&params, &next.key)?;
        next.previous = Some(Previous { certificate: self.certificate.clone(), cross });
        Ok(next)
    }

    /// Replaces this authority, even if it has expired.
    ///
    /// If it is still valid, members of both generations accept each other, as after
    /// [`Authority::rotate`].
    ///
    /// # Errors
    /// [`TrustError::Lifetime`] as in [`Authority::create`].
    pub(crate) fn renew(&self, valid_for: Duration, now: UnixTime) -> Result<Self, TrustError> {
        match self.check(now) {
            Ok(()) => self.rotate(valid_for, now),
            Err(_) => Self::of_generation(self.job, self.generation + 1, valid_for, now),
        }
    }

    /// Returns an error if the authority has expired or is not valid yet.
    ///
    /// # Errors
    /// [`TrustError::Expired`] or [`TrustError::NotYetValid`].
    pub(crate) fn check(&self, now: UnixTime) -> Result<(), TrustError> {
        self.validity.check(now, &self.who())
    }

    /// Removes the previous authority. Identities issued from now on no longer accept its
    /// certificates.
    pub fn forget_previous(&mut self) {
        self.previous = None;
    }

    /// Issues a certificate with its key.
    ///
    /// The certificate is valid as long as the authority. Its holder can open and accept
    /// connections, but cannot sign certificates for others.
    ///
    /// # Errors
    /// [`TrustError::Name`] if the name is not allowed in a certificate; [`TrustError::Expired`] if
    /// the authority has expired.
    pub fn issue(&self, role: Role, name: &str, now: UnixTime) -> Result<Identity, TrustError> {
        self.check(now)?;
        let me = Peer::new(self.job, role, name, self.generation)?;
        let key = Zeroizing::new(new_key()?.serialize_der());
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("mesh {role} {name}"));
        params.subject_alt_names = vec![uri_name(me.uri())?, host_name(role)?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes();
        set_validity(&mut params, self.validity)?;
        let mut chain = vec![self.sign(&params, &key)?];
        let mut authorities = vec![self.certificate.clone()];
        if let Some(previous) = self.previous.as_ref().filter(|one| one.counts(now)) {
            chain.push(previous.cross.clone());
            authorities.push(previous.certificate.clone());
        }
        Identity::new(key, chain, authorities).map_err(TrustError::crypto)
    }

    /// The job that this authority signs for.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The number of authorities that the job has had, including this one.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The time at which the authority and all certificates that it issued expire.
    pub fn expires_at(&self) -> UnixTime {
        self.validity.not_after
    }

    /// The time at which to replace the authority: after two thirds of its lifetime, which leaves
    /// time to distribute new certificates.
    pub fn renew_at(&self) -> UnixTime {
        self.validity.renew_at()
    }

    /// Encodes the authority and its key as text. Store it in a file that no other user can read.
    pub fn to_pem(&self) -> Zeroizing<String> {
        let previous = self.previous.iter().flat_map(|one| [&one.certificate, &one.cross]);
        encoded::to_text(&self.key, std::iter::once(&self.certificate).chain(previous))
    }

    /// Decodes the result of [`Authority::to_pem`].
    ///
    /// # Errors
    /// [`TrustError::Malformed`] if the text is anything else.
    pub fn from_pem(text: &str) -> Result<Self, TrustError> {
        Self::parse(text).map_err(|why| TrustError::malformed("the authority", why))
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (key, certificates) = encoded::from_text(text)?;
        let (certificate, previous) = match certificates.as_slice() {
            [one] => (one.clone(), None),
            [one, certificate, cross] => {
                let (certificate, cross) = (certificate.clone(), cross.clone());
                (one.clone(), Some(Previous { certificate, cross }))
            }
            others => return Err(format!("it contains {} certificates, not 1 or 3", others.len())),
        };
        let validity = Validity::of(&certificate).map_err(|error| error.to_string())?;
        let (job, generation) = encoded::read_uri(&certificate, parse_authority_uri)?;
        let authority = Self { job, generation, validity, key, certificate, previous };
        // Issuing verifies that the key is usable and that it belongs to this authority.
        let trial = authority.issue(Role::Controller, "trial", validity.not_before);
        trial.map(|_| authority).map_err(|_| "its key is not that of its certificate".to_owned())
    }

    fn who(&self) -> String {
        format!("the authority of job {}", job_text(self.job))
    }

    /// Signs a certificate for the holder of a key.
    fn sign(
        &self,
        params: &CertificateParams,
        key: &[u8],
    ) -> Result<CertificateDer<'static>, TrustError> {
        let own = authority_params(self.job, self.generation, self.validity)?;
        let (own_key, key) = (read_key(&self.key)?, read_key(key)?);
        let issuer = Issuer::from_params(&own, &own_key);
        let signed = params.signed_by(&key, &issuer).map_err(TrustError::crypto)?;
        Ok(signed.der().clone())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Authority");
        out.field("job", &job_text(self.job)).field("generation", &self.generation);
        out.field("expires_at", &self.expires_at().as_secs()).finish_non_exhaustive()
    }
}

impl Previous {
    fn counts(&self, now: UnixTime) -> bool {
        Validity::of(&self.certificate).is_ok_and(|validity| now <= validity.not_after)
    }
}

impl Validity {
    /// The time after two thirds of the period.
    pub(crate) fn renew_at(&self) -> UnixTime {
        at(self.not_before.as_secs() + since(self.not_after, self.not_before).as_secs() / 3 * 2)
    }
}

fn new_key() -> Result<KeyPair, TrustError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(TrustError::crypto)
}

fn read_key(der: &[u8]) -> Result<KeyPair, TrustError> {
    let der = PrivatePkcs8KeyDer::from(der);
    KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ECDSA_P256_SHA256).map_err(TrustError::crypto)
}

/// The parameters of an authority's certificate, which are always the same for the same authority.
fn authority_params(
    job: JobId,
    generation: u64,
    validity: Validity,
) -> Result<CertificateParams, TrustError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    // Each generation has a distinct name, because certificate chains are built by name.
    let name = format!("mesh authority {} {generation}", job_text(job));
    params.distinguished_name.push(DnType::CommonName, name);
    params.subject_alt_names = vec![uri_name(authority_uri(job, generation))?];
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.extended_key_usages = purposes();
    set_validity(&mut params, validity)?;
    Ok(params)
}

/// Every member may open and accept connections; an authority may sign for no other purpose.
fn purposes() -> Vec<ExtendedKeyUsagePurpose> {
    vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
}

fn uri_name(uri: String) -> Result<SanType, TrustError> {
    Ok(SanType::URI(uri.try_into().map_err(TrustError::crypto)?))
}

/// A DNS name for TLS stacks that require one. All members of a role share it; it is not an
/// address.
fn host_name(role: Role) -> Result<SanType, TrustError> {
    let name = format!("{role}.mesh").try_into().map_err(TrustError::crypto)?;
    Ok(SanType::DnsName(name))
}

fn set_validity(params: &mut CertificateParams, validity: Validity) -> Result<(), TrustError> {
    let time = |time: UnixTime| {
        let seconds = i64::try_from(time.as_secs()).map_err(TrustError::crypto)?;
        OffsetDateTime::from_unix_timestamp(seconds).map_err(TrustError::crypto)
    };
    params.not_before = time(validity.not_before)?;
    params.not_after = time(validity.not_after)?;
    Ok(())
}
