//! Mounts that pyfuse3 serves, and the removal of stale mounts.

use std::path::PathBuf;

use mesh_fuse::GuardedMount;
use pyo3::prelude::*;

use crate::view::failed;

/// A mount that pyfuse3 makes and serves, and that a guardian process unmounts when this process
/// dies.
#[pyclass(frozen, module = "mesh_fs._core", name = "GuardedMount")]
pub(crate) struct PyGuardedMount(GuardedMount);

#[pymethods]
impl PyGuardedMount {
    /// Starts the guardian, before anything is mounted.
    #[new]
    fn prepare(py: Python<'_>, name: &str) -> PyResult<Self> {
        let prepared = py.detach(|| GuardedMount::prepare(name));
        prepared.map(Self).map_err(|error| failed(py, &error))
    }

    /// Unique source with which pyfuse3 must mount.
    #[getter]
    fn source(&self) -> &str {
        self.0.source()
    }

    /// Sets the read-ahead size of the kernel, if this process may do so.
    fn set_read_ahead(&self, bytes: u32) {
        self.0.set_read_ahead(bytes);
    }

    /// Unmounts it, even if its files are open.
    fn unmount(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.unmount()).map_err(|error| failed(py, &error))
    }

    /// Ends the guardian. Nothing may be mounted any more.
    fn dismiss(&self) {
        self.0.dismiss();
    }
}

/// Unmounts mounts of this user that are no longer served by a process.
#[pyfunction]
pub(crate) fn unmount_dead(py: Python<'_>) {
    py.detach(mesh_fuse::unmount_dead);
}

/// Removes mounts, and overlays in the folder of chunks, that killed processes of this user have
/// left.
#[pyfunction]
pub(crate) fn remove_stale_mounts(py: Python<'_>, folder: PathBuf) {
    py.detach(|| {
        // An overlay is mounted above another mount, so it must be removed first.
        mesh_overlay::remove_left(&folder);
        mesh_fuse::unmount_dead();
    });
}
