//! Python binding of announcements of copies that another component performs.

use crate::errors::raise;
use mesh_data::{CopyLease, DataError};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

/// An announced copy to or from a buffer. Until it ends, a release of the buffer waits.
#[pyclass(frozen, name = "CopyLease", module = "mesh_rdma._core")]
pub(crate) struct PyCopyLease(Mutex<Option<CopyLease>>);

impl PyCopyLease {
    pub(crate) fn of(lease: CopyLease) -> Self {
        Self(Mutex::new(Some(lease)))
    }
}

#[pymethods]
impl PyCopyLease {
    /// Raises if the buffer was released or its owner has exited.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let lease = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let checked = lease.as_ref().map_or(Err(DataError::Released), CopyLease::check);
        checked.map_err(|error| raise(py, &error))
    }

    /// Ends the lease, because the copy is complete.
    fn end(&self) {
        let lease = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(lease);
    }
}
