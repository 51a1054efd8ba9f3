//! Copies that something else makes, as Python announces them.

use crate::errors::raise;
use mesh_data::{Claim, DataError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// As long as it has not ended, a copy of a buffer may be under way, and a release waits.
#[pyclass(frozen, name = "Claim", module = "mesh_rdma._core")]
pub(crate) struct PyClaim(Mutex<Option<Claim>>);

impl PyClaim {
    pub(crate) fn of(claim: Claim) -> Self {
        Self(Mutex::new(Some(claim)))
    }
}

#[pymethods]
impl PyClaim {
    /// Fails when the buffer was released or its owner is gone.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let claim = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = claim.as_ref().map_or(Err(DataError::Released), Claim::check);
        checked.map_err(|error| raise(py, &error))
    }

    /// Ends it: the copy is over.
    fn end(&self) {
        let claim = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(claim);
    }
}
