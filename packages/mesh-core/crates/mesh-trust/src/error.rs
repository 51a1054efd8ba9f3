//! What may go wrong between two sides that do not trust each other yet.

use crate::claim::{Role, job_text};
use mesh_wire::id::JobId;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why a peer is refused, why a peer refuses us, or why keys cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TrustError {
    /// The peer's certificate was signed by someone else than our job's authority.
    #[error(
        "the other side's certificate is not signed by the authority of job {}: \
         use credentials that were issued for this job, and not before they were replaced",
        job_text(*.ours)
    )]
    UnknownAuthority {
        /// Our job.
        ours: JobId,
    },
    /// The peer's certificate is of another job.
    #[error(
        "the other side belongs to job {}, and this one to {}: \
         start both with credentials of the same job", job_text(*.theirs), job_text(*.ours)
    )]
    OtherJob {
        /// What the peer's certificate says. Nothing proves it.
        theirs: JobId,
        /// Our job.
        ours: JobId,
    },
    /// The peer's certificate is of our job, and of a generation that no longer counts.
    #[error(
        "the other side's certificate is of generation {theirs}, and {oldest} is the oldest that \
         counts: issue it a new one, its authority has been replaced"
    )]
    Stale {
        /// The generation of the peer's certificate.
        theirs: u64,
        /// The oldest generation that we accept.
        oldest: u64,
    },
    /// A certificate is past its end.
    #[error(
        "the certificate of {who} expired {} before the time on this host's clock: \
         rotate the job's credentials, or set the clocks of both hosts", span(*.ago)
    )]
    Expired {
        /// Whose certificate it is.
        who: String,
        /// How long ago, by our clock.
        ago: Duration,
    },
    /// A certificate is not valid yet.
    #[error(
        "the certificate of {who} begins {} after the time on this host's clock: \
         set the clocks of both hosts, they differ by at least that much", span(*.ahead)
    )]
    NotYetValid {
        /// Whose certificate it is.
        who: String,
        /// How far ahead, by our clock.
        ahead: Duration,
    },
    /// The peer showed no certificate.
    #[error("the other side showed no certificate: start it with credentials of this job")]
    NoCertificate,
    /// The peer is of our job, and not what we want at the other end of this link.
    #[error(
        "the other side is {role} {name:?}, and this link takes {}: \
         issue it a certificate of that role, or connect elsewhere",
        list(allowed)
    )]
    RoleNotAllowed {
        /// What it is.
        role: Role,
        /// Its name.
        name: String,
        /// What it would have to be.
        allowed: Vec<Role>,
    },
    /// The peer's certificate makes no sense.
    #[error("the other side's certificate cannot be used, {why}: issue it one with mesh-core")]
    BadCertificate {
        /// What is wrong with it.
        why: String,
    },
    /// The first bytes of the link are not those of a TLS handshake.
    #[error(
        "the other side does not speak tls, its first bytes are {first:?}: \
         only mesh processes with credentials of this job may connect to this port"
    )]
    NotTls {
        /// How the link began, as text.
        first: String,
    },
    /// The peer speaks TLS, and nothing that we do.
    #[error("the other side speaks another tls ({why}): connect with tls 1.3 and protocol mesh/1")]
    OtherTls {
        /// What does not fit.
        why: String,
    },
    /// The peer sends more than a handshake may have.
    #[error("the other side sent more than {limit} bytes before it proved itself: it is refused")]
    TooLong {
        /// The most bytes of a handshake.
        limit: usize,
    },
    /// The peer took more time than a handshake may have.
    #[error(
        "the other side did not prove itself within {}: it is slow, or no mesh process",
        span(*.limit)
    )]
    TooSlow {
        /// The time it was given.
        limit: Duration,
    },
    /// The link ended during the handshake.
    #[error("the link ended before both sides had proved themselves: look at the log of the other")]
    Closed,
    /// The peer refuses us.
    #[error("the other side refused this one ({alert}): {why}")]
    Refused {
        /// The name of the alert that it sent.
        alert: &'static str,
        /// What that means, and what to do.
        why: &'static str,
    },
    /// The peer breaks the rules of TLS.
    #[error("the other side broke the rules of tls ({why}): the link is closed")]
    Misbehaved {
        /// What it did.
        why: String,
    },
    /// Bytes on the link are not what the peer sent.
    #[error("the link carried bytes that the other side did not seal: it was tampered with")]
    Tampered,
    /// A key file can be read by others.
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
    /// A folder for keys can be used or changed by others.
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
    /// A key file or its folder is another user's.
    #[error(
        "{} belongs to user {owner}, and this process runs as user {us}: \
         keys are only taken from their owner, copy them with chown", path.display()
    )]
    OtherOwner {
        /// The file.
        path: PathBuf,
        /// Who owns it.
        owner: u32,
        /// Who we are.
        us: u32,
    },
    /// A file is not what it should be.
    #[error("{what} cannot be read, {why}: save it again with mesh-core")]
    Malformed {
        /// The file, or what else was read.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused to read or write a key file.
    #[error("{} cannot be {verb}: {why}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// The kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        why: String,
    },
    /// A name that no certificate can carry.
    #[error(
        "{name:?} is no name for a peer: use 1 to 64 letters, digits, dots, dashes, underscores"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A word that is no role.
    #[error("{name:?} is no role: use worker or controller")]
    RoleName {
        /// The word.
        name: String,
    },
    /// A lifetime that makes no sense.
    #[error("credentials cannot be valid for {}: use one minute to ten years", span(*.valid_for))]
    Lifetime {
        /// What was asked for.
        valid_for: Duration,
    },
    /// Keys could not be made or used. The machine has no randomness, or this is our bug.
    #[error("keys could not be made or used: {why}")]
    Crypto {
        /// What failed.
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

fn list(roles: &[Role]) -> String {
    let names: Vec<_> = roles.iter().map(|role| role.as_str()).collect();
    if names.is_empty() { "nobody".to_owned() } else { format!("only {}", names.join(" or ")) }
}

/// A time span as people say it, no finer than anyone sets a clock.
fn span(span: Duration) -> String {
    match span.as_secs() {
        0 => format!("{} ms", span.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
