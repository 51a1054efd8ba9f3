//! Errors of credentials, and of two sides that do not trust each other yet.

use crate::alert;
use crate::claim::{Role, job_text};
use mesh_tls::TlsError;
use mesh_wire::id::JobId;
use rustls::Error as RustlsError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// The reason why we refuse a peer, why a peer refuses us, or why keys cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The peer's certificate was not signed by the authority of our job.
    #[error(
        "the peer's certificate is not signed by the authority of job {}: \
         use credentials that were issued for this job, and not before they were replaced",
        job_text(*.ours)
    )]
    UnknownAuthority {
        /// Our job.
        ours: JobId,
    },
    /// The peer's certificate belongs to another job.
    #[error(
        "the peer belongs to job {}, and this process to {}: \
         start both with credentials of the same job", job_text(*.theirs), job_text(*.ours)
    )]
    OtherJob {
        /// The job in the peer's certificate, which is not verified.
        theirs: JobId,
        /// Our job.
        ours: JobId,
    },
    /// The peer's certificate belongs to our job, but its generation is no longer accepted.
    #[error(
        "the peer's certificate has generation {theirs}, and the oldest accepted one is {oldest}: \
         issue a new certificate, because its authority was replaced"
    )]
    Stale {
        /// The generation of the peer's certificate.
        theirs: u64,
        /// The oldest generation that we accept.
        oldest: u64,
    },
    /// A certificate has expired.
    #[error(
        "the certificate of {who} expired {} before the time on this host's clock: \
         rotate the job's credentials, or set the clocks of both hosts", span(*.ago)
    )]
    Expired {
        /// The holder of the certificate.
        who: String,
        /// The time since then, according to our clock.
        ago: Duration,
    },
    /// A certificate is not valid yet.
    #[error(
        "the certificate of {who} begins {} after the time on this host's clock: \
         set the clocks of both hosts, they differ by at least that much", span(*.ahead)
    )]
    NotYetValid {
        /// The holder of the certificate.
        who: String,
        /// The time until then, according to our clock.
        ahead: Duration,
    },
    /// The peer sent no certificate.
    #[error("the peer presented no certificate: start it with credentials of this job")]
    NoCertificate,
    /// The peer belongs to our job, but its role is not accepted on this connection.
    #[error(
        "the peer is {role} {name:?}, and this connection accepts {}: \
         issue it a certificate of that role, or connect elsewhere",
        list(allowed)
    )]
    RoleNotAllowed {
        /// The role of the peer.
        role: Role,
        /// The name of the peer.
        name: String,
        /// The accepted roles.
        allowed: Vec<Role>,
    },
    /// The peer's certificate is invalid.
    #[error("the peer's certificate cannot be used, {why}: issue another one with mesh-core")]
    BadCertificate {
        /// The defect of the certificate.
        why: String,
    },
    /// The first bytes of the connection are not a TLS handshake.
    #[error(
        "the peer does not speak TLS: its first bytes are {first:?}: \
         only mesh processes with credentials of this job may connect to this port"
    )]
    NotTls {
        /// The first bytes, as escaped text.
        first: String,
    },
    /// The peer speaks TLS, but no version or protocol that we support.
    #[error(
        "the peer uses another version of TLS or another protocol ({why}): \
         connect with TLS 1.3 and protocol mesh/1"
    )]
    OtherTls {
        /// The incompatibility.
        why: String,
    },
    /// The peer sent more bytes than a handshake may have.
    #[error(
        "the peer sent more than {limit} bytes before it authenticated: the connection is closed"
    )]
    TooLong {
        /// The maximum number of bytes in a handshake.
        limit: usize,
    },
    /// The peer exceeded the time limit of a handshake.
    #[error(
        "the peer did not authenticate within {}: it is slow, or not a mesh process",
        span(*.limit)
    )]
    TooSlow {
        /// The time limit.
        limit: Duration,
    },
    /// The connection was closed during the handshake.
    #[error("the connection ended before both sides authenticated: see the log of the peer")]
    Closed,
    /// The peer refuses us.
    #[error("the peer rejected this side ({alert}): {why}")]
    Refused {
        /// The name of the alert that it sent.
        alert: &'static str,
        /// The meaning of the alert, and the remedy.
        why: &'static str,
    },
    /// The peer violates the TLS protocol.
    #[error("the peer violated the TLS protocol ({why}): the connection is closed")]
    Misbehaved {
        /// The violation.
        why: String,
    },
    /// Bytes were modified between the peer and this process.
    #[error("a record of the connection failed authentication: it was changed in transit")]
    Tampered,
    /// Other users can read a key file.
    #[error(
        "key file {} can be used by others than its owner (mode {mode:04o}): \
         chmod 600 it, and issue new credentials if someone may have read it", path.display()
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Other users can use or change a folder for keys.
    #[error(
        "key folder {} can be used by others than its owner (mode {mode:04o}): chmod 700 it",
        path.display()
    )]
    FolderOpenToOthers {
        /// The folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A key file or its folder belongs to another user.
    #[error(
        "{} belongs to user {owner}, and this process runs as user {us}: \
         keys are only taken from their owner, copy them with chown", path.display()
    )]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// The id of its owner.
        owner: u32,
        /// The id of the current user.
        us: u32,
    },
    /// A file or text has unexpected content.
    #[error("{what} cannot be read, {why}: save it again with mesh-core")]
    Malformed {
        /// The file, or a description of the text.
        what: String,
        /// The defect.
        why: String,
    },
    /// The operating system refused to read or write a key file.
    #[error("{} cannot be {verb}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted operation.
        verb: &'static str,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The message of the operating system.
        why: String,
    },
    /// A name that is not allowed in a certificate.
    #[error(
        "{name:?} is not a name for a peer: use 1 to 64 letters, digits, dots, dashes, underscores"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A word that is not a role.
    #[error("{name:?} is not a role: use worker or controller")]
    RoleName {
        /// The word.
        name: String,
    },
    /// A lifetime outside the allowed range.
    #[error("credentials cannot be valid for {}: use one minute to ten years", span(*.valid_for))]
    Lifetime {
        /// The requested lifetime.
        valid_for: Duration,
    },
    /// Keys could not be generated or used. Either the machine provides no randomness, or this is a
    /// bug in Mesh.
    #[error("keys could not be generated or used: {why}")]
    Crypto {
        /// The failed operation.
        why: String,
    },
}

impl TrustError {
    pub(crate) fn crypto(error: impl ToString) -> Self {
        Self::Crypto { why: error.to_string() }
    }

    pub(crate) fn malformed(what: impl ToString, why: impl ToString) -> Self {
        Self::Malformed { what: what.to_string(), why: why.to_string() }
    }
}

impl From<TlsError> for TrustError {
    /// Explains an error to a member of a job.
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Handshake(error) => in_words(error),
            TlsError::NotTls { first } => Self::NotTls { first },
            TlsError::TooLong { limit } => Self::TooLong { limit },
            TlsError::Closed => Self::Closed,
            TlsError::Alert(alert) => alert::refusal(alert),
            TlsError::Tampered => Self::Tampered,
            TlsError::Crypto { why } => Self::Crypto { why },
            TlsError::Misbehaved(why) => Self::Misbehaved { why: why.to_owned() },
            other => Self::Misbehaved { why: other.to_string() },
        }
    }
}

fn in_words(error: RustlsError) -> TrustError {
    match error {
        RustlsError::AlertReceived(alert) => alert::refusal(alert),
        RustlsError::NoCertificatesPresented => TrustError::NoCertificate,
        RustlsError::PeerIncompatible(why) => TrustError::OtherTls { why: format!("{why:?}") },
        RustlsError::NoApplicationProtocol => {
            TrustError::OtherTls { why: "it offers no protocol of Mesh".to_owned() }
        }
        RustlsError::InvalidCertificate(why) => TrustError::BadCertificate { why: why.to_string() },
        other => TrustError::Misbehaved { why: other.to_string() },
    }
}

fn list(roles: &[Role]) -> String {
    let names: Vec<_> = roles.iter().map(|role| role.as_str()).collect();
    if names.is_empty() { "nobody".to_owned() } else { format!("only {}", names.join(" or ")) }
}

/// Formats a time span for people, with the precision that matters for setting a clock.
fn span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
