//! Certificates that mesh-core would never issue, made with stolen keys.

use crate::pair;
use crate::pair::{DAY, JOB, NOW, drive, identity, time, trust_at};
use mesh_trust::claim::job_text;
use mesh_trust::trust::server_name;
use mesh_trust::{Authority, Identity, Role, Trust, TrustError};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType,
};
use rustls::crypto::ring::sign::any_ecdsa_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{AlertDescription, ClientConnection};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::Arc;
use time::OffsetDateTime;

/// The key and the certificates of a stolen key file.
struct StolenIdentity {
    key: KeyPair,
    certificates: Vec<CertificateDer<'static>>,
}

impl StolenIdentity {
    fn of(text: &str) -> Self {
        let blocks = pem::parse_many(text).expect("it is a key file");
        let key = KeyPair::from_pem(&pem::encode(&blocks[0])).expect("the key comes first");
        let rest = blocks.into_iter().skip(1);
        Self { key, certificates: rest.map(|one| one.into_contents().into()).collect() }
    }

    /// Signs a certificate as an issuer of that name.
    fn sign(&self, name: &str, uri: &str, purpose: ExtendedKeyUsagePurpose) -> CertifiedKey {
        let named = |name: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            params
        };
        let mut params = named("forged");
        params.subject_alt_names = vec![SanType::URI(uri.try_into().expect("plain text"))];
        params.extended_key_usages = vec![purpose];
        params.not_before = moment(NOW - 300);
        params.not_after = moment(NOW + 10 * DAY.as_secs());
        let key = KeyPair::generate().expect("there is randomness");
        let issuer_params = named(name);
        let issuer = Issuer::from_params(&issuer_params, &self.key);
        let forged = params.signed_by(&key, &issuer).expect("it can be signed");
        let pkcs8 = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let chain = vec![forged.der().clone(), self.certificates[0].clone()];
        CertifiedKey::new(chain, any_ecdsa_type(&pkcs8).expect("a key"))
    }
}

fn moment(seconds: u64) -> OffsetDateTime {
    let seconds = i64::try_from(seconds).expect("not so late");
    OffsetDateTime::from_unix_timestamp(seconds).expect("not so late")
}

fn uri(generation: u64) -> String {
    format!("mesh://{}/controller/thief?generation={generation}", job_text(JOB))
}

/// The error of a server, and its alert, when a client presents a forged certificate.
fn refusal(server: &Trust, client: &Trust, forged: CertifiedKey) -> (TrustError, AlertDescription) {
    let mut config = client.client_config().expect("a configuration");
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(forged));
    let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
    drive(server.accept(), client).expect("it is refused")
}

#[test]
fn a_certificate_signed_by_a_member_is_refused() {
    let authority = pair::authority(JOB);
    let worker = identity(&authority, Role::Worker);
    let trust = trust_at(&worker, &Role::ALL, NOW);
    let name = "mesh worker someone";
    let forged = StolenIdentity::of(&worker.to_pem()).sign(
        name,
        &uri(1),
        ExtendedKeyUsagePurpose::ClientAuth,
    );
    let (refused, alert) = refusal(&trust, &trust, forged);
    assert!(matches!(refused, TrustError::BadCertificate { .. }), "{refused}");
    assert_eq!(alert, AlertDescription::BadCertificate);
}

fn authority_name(generation: u64) -> String {
    format!("mesh authority {} {generation}", job_text(JOB))
}

/// A member of the second generation, which also accepts the first.
fn second(first: &Authority) -> Identity {
    identity(&first.rotate(3 * DAY, time(NOW)).expect("it is valid"), Role::Worker)
}

#[test]
fn a_certificate_signed_by_an_expired_authority_is_refused() {
    let first = pair::authority(JOB);
    let member = second(&first);
    let stolen = StolenIdentity::of(&first.to_pem());
    let forge = || stolen.sign(&authority_name(1), &uri(1), ExtendedKeyUsagePurpose::ClientAuth);
    // While the authority is valid, anyone with its key can sign for it.
    let trust = trust_at(&member, &Role::ALL, NOW);
    let mut config = trust.client_config().expect("a configuration");
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(forge()));
    let client = ClientConnection::new(Arc::new(config), server_name()).expect("a client");
    assert_eq!(drive(trust.accept(), client), None);

    let later = trust_at(&member, &Role::ALL, NOW + DAY.as_secs() + 1);
    let mut alone = forge();
    alone.cert.truncate(1);
    let (refused, alert) = refusal(&later, &later, alone);
    assert_eq!(refused, TrustError::UnknownAuthority { ours: JOB });
    assert_eq!(alert, AlertDescription::UnknownCA);
    let (refused, alert) = refusal(&later, &later, forge());
    assert!(matches!(refused, TrustError::Expired { .. }), "{refused}");
    assert_eq!(alert, AlertDescription::CertificateExpired);
}

#[test]
fn a_certificate_for_another_purpose_is_refused() {
    let first = pair::authority(JOB);
    let trust = trust_at(&identity(&first, Role::Worker), &Role::ALL, NOW);
    let stolen = StolenIdentity::of(&first.to_pem());
    for purpose in [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::CodeSigning] {
        let forged = stolen.sign(&authority_name(1), &uri(1), purpose);
        let (refused, _) = refusal(&trust, &trust, forged);
        assert!(matches!(refused, TrustError::BadCertificate { .. }), "{refused}");
    }
}

#[test]
fn a_certificate_of_another_job_or_without_an_identity_is_refused() {
    let first = pair::authority(JOB);
    let trust = trust_at(&identity(&first, Role::Worker), &Role::ALL, NOW);
    let stolen = StolenIdentity::of(&first.to_pem());
    let other = uri(1).replace("0707", "0808");
    let stale = uri(0);
    for (uri, words) in [
        (other.as_str(), "the peer belongs to job 0808"),
        (stale.as_str(), "has generation 0, and the oldest accepted one is 1"),
        ("mesh://somewhere", "it contains no mesh identity"),
        ("https://example.org/", "it contains no mesh identity"),
    ] {
        let forged = stolen.sign(&authority_name(1), uri, ExtendedKeyUsagePurpose::ClientAuth);
        let (refused, _) = refusal(&trust, &trust, forged);
        assert!(refused.to_string().contains(words), "{refused}");
    }
}
