//! The statements of a certificate about its holder, encoded as the URI
//! `mesh://<job>/<role>/<name>?generation=<n>`.

use crate::error::TrustError;
use mesh_wire::id::JobId;
use std::fmt;
use std::str::FromStr;

/// The maximum length of a peer's name.
pub const NAME_LEN_MAX: usize = 64;

/// The value in place of a role in the certificate of an authority. It is not a role.
const AUTHORITY: &str = "authority";

/// The role of a certificate's holder, which determines which connections it may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Serves a machine as a host of the job.
    Worker,
    /// Runs the job: the script, or a program that takes over from it.
    Controller,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Controller];

    /// The name of the role in certificates and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Controller => "controller",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<Self, TrustError> {
        let found = Self::ALL.into_iter().find(|role| role.as_str() == text);
        found.ok_or_else(|| TrustError::RoleName { name: text.to_owned() })
    }
}

/// The verified identity of a peer, as stated by its certificate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    job: JobId,
    role: Role,
    name: String,
    generation: u64,
}

impl Peer {
    /// Creates the identity of a peer.
    ///
    /// # Errors
    /// [`TrustError::Name`] if the name is not allowed in a certificate.
    pub fn new(job: JobId, role: Role, name: &str, generation: u64) -> Result<Self, TrustError> {
        if !is_name(name) {
            return Err(TrustError::Name { name: name.to_owned() });
        }
        Ok(Self { job, role, name: name.to_owned(), generation })
    }

    /// The job of the peer.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// The role of the peer.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The name of the peer, or of a set of workers that share a certificate.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The generation of the authority that signed the certificate.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The URI that encodes this identity in a certificate.
    pub(crate) fn uri(&self) -> String {
        uri(self.job, self.role.as_str(), &self.name, self.generation)
    }

    /// Parses the result of [`Peer::uri`], and nothing else.
    pub(crate) fn from_uri(text: &str) -> Option<Self> {
        let (job, role, name, generation) = parts(text)?;
        Self::new(job, role.parse().ok()?, name, generation).ok()
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.role, self.name)
    }
}

/// Formats the id of a job as 32 hexadecimal digits.
pub fn job_text(job: JobId) -> String {
    format!("{:032x}", u128::from_be_bytes(job.0))
}

/// Parses the result of [`job_text`].
pub fn parse_job(text: &str) -> Option<JobId> {
    let is_hex =
        text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(JobId(number.to_be_bytes()))
}

/// The URI in the certificate of an authority.
pub(crate) fn authority_uri(job: JobId, generation: u64) -> String {
    uri(job, AUTHORITY, AUTHORITY, generation)
}

/// Parses the result of [`authority_uri`].
pub(crate) fn parse_authority_uri(text: &str) -> Option<(JobId, u64)> {
    let (job, role, name, generation) = parts(text)?;
    (role == AUTHORITY && name == AUTHORITY).then_some((job, generation))
}

fn uri(job: JobId, role: &str, name: &str, generation: u64) -> String {
    format!("mesh://{}/{role}/{name}?generation={generation}", job_text(job))
}

fn parts(text: &str) -> Option<(JobId, &str, &str, u64)> {
    let (path, number) = text.strip_prefix("mesh://")?.split_once("?generation=")?;
    let mut pieces = path.split('/');
    let (job, role, name) = (parse_job(pieces.next()?)?, pieces.next()?, pieces.next()?);
    let generation: u64 = number.parse().ok()?;
    // Only the canonical spelling is accepted, so that different texts never mean the same
    // identity.
    let is_canonical = pieces.next().is_none() && generation.to_string() == number;
    is_canonical.then_some((job, role, name, generation))
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: JobId = JobId([0x0a; 16]);

    #[test]
    fn a_peer_round_trips_through_its_uri() {
        let peer = Peer::new(JOB, Role::Worker, "host-1.rack_2", 7).expect("the name is allowed");
        let uri = "mesh://0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/worker/host-1.rack_2?generation=7";
        assert_eq!(peer.uri(), uri);
        assert_eq!(Peer::from_uri(uri), Some(peer));
    }

    #[test]
    fn only_the_canonical_spelling_of_a_uri_is_accepted() {
        let job = job_text(JOB);
        let upper = job.to_uppercase();
        for wrong in [
            String::new(),
            format!("mesh://{job}/worker/a"),
            format!("mesh://{job}/worker/a?generation=07"),
            format!("mesh://{job}/worker/a?generation=+7"),
            format!("mesh://{job}/worker/a?generation=18446744073709551616"),
            format!("mesh://{job}/worker/a/b?generation=7"),
            format!("mesh://{job}/worker/?generation=7"),
            format!("mesh://{job}/worker/a%20b?generation=7"),
            format!("mesh://{job}/authority/authority?generation=7"),
            format!("mesh://{job}/owner/a?generation=7"),
            format!("mesh://{upper}/worker/a?generation=7"),
            format!("mesh://{}/worker/a?generation=7", &job[1..]),
            format!("http://{job}/worker/a?generation=7"),
        ] {
            assert_eq!(Peer::from_uri(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_authority_uri_is_not_a_peer() {
        let uri = authority_uri(JOB, 3);
        assert_eq!(parse_authority_uri(&uri), Some((JOB, 3)));
        assert_eq!(Peer::from_uri(&uri), None);
    }
}
