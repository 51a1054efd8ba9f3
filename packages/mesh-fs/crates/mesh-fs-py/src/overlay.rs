//! Overlays for writes on a host.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_overlay::{MountFolder, Overlay, OverlayError};
use pyo3::prelude::*;

use crate::errors::raise;

/// An overlay that stores the writes of programs of this host over a tree.
#[pyclass(frozen, module = "mesh_fs._core", name = "Overlay")]
pub(crate) struct PyOverlay {
    folder: Arc<MountFolder>,
    overlay: Mutex<Option<Overlay>>,
}

fn failed(py: Python<'_>, error: &OverlayError) -> PyErr {
    let class = match error {
        OverlayError::Full { .. } | OverlayError::Store(_) => "StoreError",
        error if error.is_forbidden() => "MountForbidden",
        _ => "MountError",
    };
    raise(py, class, error)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl PyOverlay {
    /// Opens an empty directory, and checks that overlays can be mounted on this host.
    #[new]
    #[pyo3(signature = (mountpoint, *, folder))]
    fn open(py: Python<'_>, mountpoint: PathBuf, folder: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let folder = Arc::new(MountFolder::make(&folder)?);
            let overlay = Mutex::new(Some(Overlay::new(Arc::clone(&folder), &mountpoint)?));
            Ok(Self { folder, overlay })
        })
        .map_err(|error| failed(py, &error))
    }

    /// Returns the directory at which the tree must be mounted.
    fn lower(&self) -> PathBuf {
        locked(&self.overlay).as_ref().map(|overlay| overlay.lower().to_owned()).unwrap_or_default()
    }

    /// Shows what is mounted at `lower`, combined with the writes of this host.
    fn show(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| locked(&self.overlay).as_mut().map_or(Ok(()), Overlay::show))
            .map_err(|error| failed(py, &error))
    }

    /// Returns whether it is mounted; false if someone else has unmounted it.
    fn is_open(&self, py: Python<'_>) -> bool {
        py.detach(|| locked(&self.overlay).as_ref().is_some_and(Overlay::is_open))
    }

    /// Unmounts it, even if its files are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| locked(&self.overlay).take().map_or(Ok(()), |mut overlay| overlay.close()))
            .map_err(|error| failed(py, &error))
    }

    /// Removes the files that were written. The tree below must be unmounted already.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.folder.close());
    }
}
