//! Certificates as bytes: reading their fields, and encoding them as text.

use crate::error::TrustError;
use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::{CertificateDer, UnixTime};
use std::time::Duration;
use webpki::{EndEntityCert, KeyUsage};
use zeroize::Zeroizing;

/// The maximum length of a text that is parsed: a key, its chain and two authorities need a fifth
/// of it.
pub(crate) const TEXT_LEN_MAX: usize = 32 << 10;

const KEY: &str = "PRIVATE KEY";
const CERTIFICATE: &str = "CERTIFICATE";

/// The validity period of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Validity {
    pub(crate) not_before: UnixTime,
    pub(crate) not_after: UnixTime,
}

impl Validity {
    /// Reads the validity period of a certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, webpki::Error> {
        let parsed = EndEntityCert::try_from(certificate)?;
        // webpki has no accessor for the two times, but its errors for a time outside the period
        // contain them.
        let ask = |time| {
            let usage = KeyUsage::server_auth();
            parsed.verify_for_usage(&[], &[], &[], time, usage, None, None).err()
        };
        match (ask(at(0)), ask(at(u64::MAX))) {
            (
                Some(webpki::Error::CertNotValidYet { not_before, .. }),
                Some(webpki::Error::CertExpired { not_after, .. }),
            ) => Ok(Self { not_before, not_after }),
            (other, _) => Err(other.unwrap_or(webpki::Error::BadDerTime)),
        }
    }

    /// Returns an error if `now` is outside the period.
    pub(crate) fn check(&self, now: UnixTime, who: &str) -> Result<(), TrustError> {
        let who = who.to_owned();
        if now > self.not_after {
            return Err(TrustError::Expired { who, ago: since(now, self.not_after) });
        }
        if now < self.not_before {
            return Err(TrustError::NotYetValid { who, ahead: since(self.not_before, now) });
        }
        Ok(())
    }
}

/// Converts seconds since 1970.
pub(crate) fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// The duration between two times; zero if `later` is not later.
pub(crate) fn since(later: UnixTime, earlier: UnixTime) -> Duration {
    Duration::from_secs(later.as_secs().saturating_sub(earlier.as_secs()))
}

/// Parses the only URI in a certificate with `parse`.
pub(crate) fn read_uri<T>(
    certificate: &CertificateDer<'_>,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, String> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
    let mut uris = parsed.valid_uri_names();
    match (uris.next(), uris.next()) {
        (Some(uri), None) => parse(uri).ok_or_else(|| "it contains no mesh identity".to_owned()),
        (None, _) => Err("it contains no identity".to_owned()),
        (Some(_), Some(_)) => Err("it contains more than one identity".to_owned()),
    }
}

/// Whether a certificate is self-signed, judged by its subject and issuer.
pub(crate) fn is_own_issuer(certificate: &CertificateDer<'_>) -> bool {
    EndEntityCert::try_from(certificate).is_ok_and(|parsed| parsed.issuer() == parsed.subject())
}

/// Encodes a key and certificates as text, the key first.
pub(crate) fn to_text<'a>(
    key: &[u8],
    certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> Zeroizing<String> {
    let line_ends = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let mut blocks = vec![Pem::new(KEY, key)];
    blocks.extend(certificates.into_iter().map(|one| Pem::new(CERTIFICATE, one.as_ref())));
    Zeroizing::new(pem::encode_many_config(&blocks, line_ends))
}

/// Encodes certificates as text.
pub(crate) fn certificates_to_text(certificates: &[CertificateDer<'static>]) -> String {
    let line_ends = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let blocks: Vec<Pem> =
        certificates.iter().map(|one| Pem::new(CERTIFICATE, one.as_ref())).collect();
    pem::encode_many_config(&blocks, line_ends)
}

/// The inverse of [`to_text`].
pub(crate) fn from_text(
    text: &str,
) -> Result<(Zeroizing<Vec<u8>>, Vec<CertificateDer<'static>>), String> {
    if text.len() > TEXT_LEN_MAX {
        return Err(format!("it is longer than {TEXT_LEN_MAX} bytes"));
    }
    let blocks = pem::parse_many(text).map_err(|error| error.to_string())?;
    let mut key = None;
    let mut certificates = Vec::new();
    for block in blocks {
        match block.tag() {
            KEY if key.is_none() => key = Some(Zeroizing::new(block.into_contents())),
            CERTIFICATE => certificates.push(CertificateDer::from(block.into_contents())),
            other => return Err(format!("it contains an unexpected block {other:?}")),
        }
    }
    match key {
        Some(key) => Ok((key, certificates)),
        None => Err("it contains no private key".to_owned()),
    }
}
