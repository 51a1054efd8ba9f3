//! What a certificate says of its holder: a URI in it, `mesh://<job>/<role>/<name>?generation=<n>`.

use crate::error::TrustError;
use mesh_wire::id::JobId;
use std::fmt;
use std::str::FromStr;

/// The longest name of a peer.
pub const NAME_LEN_MAX: usize = 64;

/// What stands where the role does in the certificate of an authority. It is no role.
const AUTHORITY: &str = "authority";

/// What the holder of a certificate may be to a link's other side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Serves a machine as a host of the job.
    Worker,
    /// Runs the job: the script, or the one that takes over from it.
    Controller,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 2] = [Self::Worker, Self::Controller];

    /// The role's name, in certificates and in messages.
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

/// Who a peer is, as its certificate proves it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Peer {
    job: JobId,
    role: Role,
    name: String,
    generation: u64,
}

impl Peer {
    /// Says who someone is.
    ///
    /// # Errors
    /// [`TrustError::Name`] when the name is not one that a certificate can carry.
    pub fn new(job: JobId, role: Role, name: &str, generation: u64) -> Result<Self, TrustError> {
        if !is_name(name) {
            return Err(TrustError::Name { name: name.to_owned() });
        }
        Ok(Self { job, role, name: name.to_owned(), generation })
    }

    /// The job it belongs to.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// What it may be.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its name; that of a set of workers when they share a certificate.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The generation of the authority that signed its certificate.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The URI that stands for this in a certificate.
    pub(crate) fn uri(&self) -> String {
        uri(self.job, self.role.as_str(), &self.name, self.generation)
    }

    /// Reads what [`Peer::uri`] wrote, and nothing else.
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

/// A job's id as people read it: 32 hexadecimal digits.
pub fn job_text(job: JobId) -> String {
    format!("{:032x}", u128::from_be_bytes(job.0))
}

/// Reads what [`job_text`] wrote.
pub fn parse_job(text: &str) -> Option<JobId> {
    let is_hex =
        text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let number = is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(JobId(number.to_be_bytes()))
}

/// The URI in an authority's own certificate.
pub(crate) fn authority_uri(job: JobId, generation: u64) -> String {
    uri(job, AUTHORITY, AUTHORITY, generation)
}

/// Reads what [`authority_uri`] wrote.
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
    // One spelling only, so that two texts that differ never mean the same.
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
    fn a_peer_survives_its_uri() {
        let peer = Peer::new(JOB, Role::Worker, "host-1.rack_2", 7).expect("the name is allowed");
        let uri = "mesh://0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a/worker/host-1.rack_2?generation=7";
        assert_eq!(peer.uri(), uri);
        assert_eq!(Peer::from_uri(uri), Some(peer));
    }

    #[test]
    fn a_uri_has_one_spelling() {
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
    fn an_authority_is_no_peer() {
        let uri = authority_uri(JOB, 3);
        assert_eq!(parse_authority_uri(&uri), Some((JOB, 3)));
        assert_eq!(Peer::from_uri(&uri), None);
    }
}
