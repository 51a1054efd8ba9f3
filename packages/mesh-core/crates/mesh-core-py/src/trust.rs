//! Python binding of the credentials of one process: `mesh_core._core.Keys`.

use mesh_trust::authority::random_job;
use mesh_trust::claim::{job_text, parse_job};
use mesh_trust::folder::AUTHORITY_FILE;
use mesh_trust::{Authority, Identity, Role, Trust, TrustError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustls_pki_types::UnixTime;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The name in the certificates of processes that use the authority of their user.
const LOCAL_NAME: &str = "local";

/// The credentials of a process and, if it runs the job, the certificate authority of the job.
#[pyclass(frozen, name = "Keys", module = "mesh_core._core")]
pub(crate) struct PyKeys {
    pub(crate) identity: Identity,
    authority: Option<Arc<Authority>>,
    /// Whether the authority of the current user on this machine signed the credentials.
    is_local: bool,
}

#[pymethods]
impl PyKeys {
    /// Creates the authority of a job and the identity of a controller.
    #[staticmethod]
    fn create(job: Option<&str>, valid_for_s: f64, name: &str) -> PyResult<Self> {
        let job = match job {
            Some(text) => parse_job(text).ok_or_else(|| {
                let words = "is not a job id: use 32 digits of 0-9 and a-f, or leave it out";
                PyValueError::new_err(format!("{text:?} {words}"))
            })?,
            None => random_job().map_err(raise)?,
        };
        let authority = Authority::create(job, lifetime(valid_for_s)?, UnixTime::now());
        Self::of(authority.map_err(raise)?, Role::Controller, name)
    }

    /// Loads credentials from a folder.
    #[staticmethod]
    fn load(py: Python<'_>, folder: PathBuf) -> PyResult<Self> {
        let loaded = py.detach(|| Ok((Identity::load(&folder)?, Authority::load(&folder)?)));
        let (identity, authority) = loaded.map_err(raise)?;
        if let Some(authority) = &authority
            && authority.job() != identity.me().job()
        {
            let words = "holds the credentials of two jobs: save each in a separate folder";
            return Err(PyValueError::new_err(format!("{} {words}", folder.display())));
        }
        Ok(Self { identity, authority: authority.map(Arc::new), is_local: false })
    }

    /// Signs credentials for this process with the authority of the current user, which is stored
    /// in a private folder.
    #[staticmethod]
    fn local(py: Python<'_>, folder: PathBuf, role: &str) -> PyResult<Self> {
        let (role, now) = (role.parse::<Role>().map_err(raise)?, UnixTime::now());
        let issue = || Authority::local(&folder, now)?.issue(role, LOCAL_NAME, now);
        Ok(Self { identity: py.detach(issue).map_err(raise)?, authority: None, is_local: true })
    }

    /// Loads an identity from the output of `to_pem`. It cannot sign.
    #[staticmethod]
    fn from_pem(text: &str) -> PyResult<Self> {
        let identity = Identity::from_pem(text).map_err(raise)?;
        Ok(Self { identity, authority: None, is_local: false })
    }

    /// Returns the identity as PEM text, with its private key and without the authority's key.
    fn to_pem(&self) -> String {
        self.identity.to_pem().to_string()
    }

    /// Returns the identity as three PEM texts: the key, the holder's certificate chain, and the
    /// authorities.
    fn to_pems(&self) -> (String, String, String) {
        let (key, chain, authorities) = self.identity.to_pems();
        (key.to_string(), chain, authorities)
    }

    /// Saves the credentials to a folder.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        if self.authority.is_none() && folder.join(AUTHORITY_FILE).exists() {
            let words = "holds the authority of a job: save the credentials of others elsewhere";
            return Err(PyValueError::new_err(format!("{} {words}", folder.display())));
        }
        // The authority is saved first: an authority that is newer than the identity is harmless.
        let saved = py.detach(|| {
            self.authority.as_ref().map_or(Ok(()), |authority| authority.save(&folder))?;
            self.identity.save(&folder)
        });
        saved.map_err(raise)
    }

    /// Signs credentials for another process.
    fn issue(&self, role: &str, name: &str) -> PyResult<Self> {
        let role: Role = role.parse().map_err(raise)?;
        let identity = self.authority()?.issue(role, name, UnixTime::now()).map_err(raise)?;
        Ok(Self { identity, authority: None, is_local: false })
    }

    /// Creates the next authority, with a new identity for the same process.
    fn rotate(&self, valid_for_s: f64) -> PyResult<Self> {
        let next = self.authority()?.rotate(lifetime(valid_for_s)?, UnixTime::now());
        let me = self.identity.me();
        Self::of(next.map_err(raise)?, me.role(), me.name())
    }

    /// Returns the same authority without trust in certificates of its predecessor.
    fn forget_previous(&self) -> PyResult<Self> {
        let mut authority = Authority::clone(self.authority()?);
        authority.forget_previous();
        let me = self.identity.me();
        Self::of(authority, me.role(), me.name())
    }

    /// The job id, as 32 hexadecimal digits.
    #[getter]
    fn job(&self) -> String {
        job_text(self.identity.me().job())
    }

    /// The role of the process.
    #[getter]
    fn role(&self) -> &'static str {
        self.identity.me().role().as_str()
    }

    /// The name of the process.
    #[getter]
    fn name(&self) -> &str {
        self.identity.me().name()
    }

    /// The generation of the authority: the number of authorities of the job when this was signed.
    #[getter]
    fn generation(&self) -> u64 {
        self.identity.me().generation()
    }

    /// Whether these credentials can sign for others.
    #[getter]
    fn has_authority(&self) -> bool {
        self.authority.is_some()
    }

    /// Whether the authority of the current user on this machine signed these credentials.
    #[getter]
    fn is_local(&self) -> bool {
        self.is_local
    }

    /// The time of expiry, in seconds since 1970.
    #[getter]
    fn expires_at_s(&self) -> u64 {
        self.identity.expires_at().as_secs()
    }

    /// The time at which to renew the credentials, in seconds since 1970.
    #[getter]
    fn renew_at_s(&self) -> u64 {
        self.identity.renew_at().as_secs()
    }
}

impl PyKeys {
    /// Prepares the credentials for handshakes with all members of the job.
    pub(crate) fn trust(&self) -> PyResult<Trust> {
        Trust::new(&self.identity, &Role::ALL).map_err(raise)
    }

    fn of(authority: Authority, role: Role, name: &str) -> PyResult<Self> {
        let identity = authority.issue(role, name, UnixTime::now()).map_err(raise)?;
        Ok(Self { identity, authority: Some(Arc::new(authority)), is_local: false })
    }

    fn authority(&self) -> PyResult<&Arc<Authority>> {
        self.authority.as_ref().ok_or_else(|| {
            let words = "cannot sign for others: use credentials that can issue others";
            PyValueError::new_err(format!("the credentials of {} {words}", self.identity.me()))
        })
    }
}

fn lifetime(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|error| {
        PyValueError::new_err(format!("credentials cannot be valid for {seconds} s: {error}"))
    })
}

fn raise(error: TrustError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
