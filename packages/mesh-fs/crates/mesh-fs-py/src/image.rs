//! Trees that are shown by images, and what a host writes over a tree.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_image::{Folder, ImageError, Overlay, Shown, ShownOptions};
use pyo3::prelude::*;

use crate::errors::raise;
use crate::store::PyStore;
use crate::tree::PyTree;

/// A directory that shows trees by images.
#[pyclass(frozen, module = "mesh_fs._core", name = "Image")]
pub(crate) struct PyImage(Mutex<Option<Shown>>);

/// What the programs of this host write over a tree.
#[pyclass(frozen, module = "mesh_fs._core", name = "Overlay")]
pub(crate) struct PyOverlay {
    folder: Arc<Folder>,
    overlay: Mutex<Option<Overlay>>,
}

fn failed(py: Python<'_>, error: &ImageError) -> PyErr {
    let class = match error {
        ImageError::Missing(_) => "ChunksMissing",
        ImageError::Full { .. } | ImageError::OverBudget { .. } | ImageError::Store(_) => {
            "StoreError"
        }
        error if error.is_forbidden() => "MountForbidden",
        _ => "MountError",
    };
    raise(py, class, error)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl PyImage {
    /// Takes an empty directory, and sees whether images can be mounted here.
    #[new]
    #[pyo3(signature = (mountpoint, *, folder, budget_bytes, is_writable))]
    fn open(
        py: Python<'_>,
        mountpoint: PathBuf,
        folder: PathBuf,
        budget_bytes: u64,
        is_writable: bool,
    ) -> PyResult<Self> {
        let options = ShownOptions { kept: folder, budget_bytes, is_writable };
        let shown = py.detach(|| Shown::open(&mountpoint, &options));
        Ok(Self(Mutex::new(Some(shown.map_err(|error| failed(py, &error))?))))
    }

    /// Shows a tree, all chunks of which the store has.
    fn show(&self, py: Python<'_>, tree: &PyTree, store: &PyStore) -> PyResult<()> {
        let (tree, store) = (Arc::clone(&tree.0), Arc::clone(&store.0));
        py.detach(|| held(&self.0).as_mut().map_or(Ok(()), |shown| shown.show(&tree, &store)))
            .map_err(|error| failed(py, &error))
    }

    /// Whether it is mounted; not any more if somebody else has unmounted it.
    fn is_open(&self, py: Python<'_>) -> bool {
        py.detach(|| held(&self.0).as_ref().is_some_and(Shown::is_open))
    }

    /// Unmounts it, also while files of it are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| held(&self.0).take().map_or(Ok(()), |mut shown| shown.close()))
            .map_err(|error| failed(py, &error))
    }
}

#[pymethods]
impl PyOverlay {
    /// Takes an empty directory, and sees whether a tree can be written over here.
    #[new]
    #[pyo3(signature = (mountpoint, *, folder))]
    fn open(py: Python<'_>, mountpoint: PathBuf, folder: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let folder = Arc::new(Folder::make(&folder)?);
            let overlay = Mutex::new(Some(Overlay::new(Arc::clone(&folder), &mountpoint)?));
            Ok(Self { folder, overlay })
        })
        .map_err(|error| failed(py, &error))
    }

    /// Where the tree is to be mounted that is shown.
    fn lower(&self) -> PathBuf {
        held(&self.overlay).as_ref().map(|overlay| overlay.lower().to_owned()).unwrap_or_default()
    }

    /// Shows what is mounted there now, with what was written.
    fn show(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| held(&self.overlay).as_mut().map_or(Ok(()), Overlay::show))
            .map_err(|error| failed(py, &error))
    }

    /// Whether it is mounted; not any more if somebody else has unmounted it.
    fn is_open(&self, py: Python<'_>) -> bool {
        py.detach(|| held(&self.overlay).as_ref().is_some_and(Overlay::is_open))
    }

    /// Unmounts it, also while files of it are open.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| held(&self.overlay).take().map_or(Ok(()), |mut overlay| overlay.close()))
            .map_err(|error| failed(py, &error))
    }

    /// Removes what was written, once the tree below is unmounted too.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.folder.close());
    }
}

/// Unmounts and removes what killed processes of this user have left in the folder of chunks.
#[pyfunction]
pub(crate) fn remove_left(py: Python<'_>, folder: PathBuf) {
    py.detach(|| mesh_image::remove_left(&folder));
}
