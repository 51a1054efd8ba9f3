//! Python binding of announcements of copies that another component performs.

use crate::errors::raise;
use mesh_data::{Claim, DataError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// An announced copy to or from a buffer. Until it ends, a release of the buffer waits.
#[pyclass(frozen, name = "Claim", module = "mesh_rdma._core")]
pub(crate) struct PyClaim(Mutex<Option<Claim>>);

impl PyClaim {
    pub(crate) fn of(claim: Claim) -> Self {
        Self(Mutex::new(Some(claim)))
    }
}

#[pymethods]
impl PyClaim {
    /// Raises if the buffer was released or its owner is gone.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let claim = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = claim.as_ref().map_or(Err(DataError::Released), Claim::check);
        checked.map_err(|error| raise(py, &error))
    }

    /// Ends the claim, because the copy is complete.
    fn end(&self) {
        let claim = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(claim);
    }
}
