//! Trees that are shown by a FUSE mount or written into a directory.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mesh_fuse::{Mount, MountError, MountOptions};
use mesh_view::{Stale, UnpackError, Unpacked, View, ViewOptions};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::store::PyStore;
use crate::tree::PyTree;

/// A tree on a host, and its mount.
#[pyclass(frozen, module = "mesh_fs._core", name = "View")]
pub(crate) struct PyView {
    view: Arc<View>,
    mount: Mutex<Option<Arc<Mount>>>,
}

pub(crate) fn failed(py: Python<'_>, error: &MountError) -> PyErr {
    raise(py, if error.is_forbidden() { "MountForbidden" } else { "MountError" }, error)
}

#[pymethods]
impl PyView {
    /// Creates a view of a tree, whose chunks are in a store or will be added to it.
    #[new]
    #[pyo3(signature = (tree, store, *, read_limit_s, read_ahead_bytes))]
    fn new(
        tree: &PyTree,
        store: &PyStore,
        read_limit_s: f64,
        read_ahead_bytes: u64,
    ) -> PyResult<Self> {
        let read_limit = Duration::from_secs_f64(read_limit_s);
        let options = ViewOptions { read_limit, read_ahead_bytes };
        let view = View::new(Arc::clone(&tree.0), Arc::clone(&store.0), options)?;
        Ok(Self { view: Arc::new(view), mount: Mutex::new(None) })
    }

    /// Mounts the view.
    #[pyo3(signature = (mountpoint, *, name, allow_other, threads))]
    fn mount(
        &self,
        py: Python<'_>,
        mountpoint: PathBuf,
        name: String,
        allow_other: bool,
        threads: usize,
    ) -> PyResult<()> {
        let options = MountOptions { name, allow_other, threads, ..MountOptions::default() };
        let view = Arc::clone(&self.view);
        let mount = py
            .detach(|| Mount::open(&mountpoint, &options, view))
            .map_err(|error| failed(py, &error))?;
        *self.mounted() = Some(Arc::new(mount));
        Ok(())
    }

    /// Replaces the tree. Changes are visible at once.
    fn show(&self, py: Python<'_>, tree: &PyTree) {
        let tree = Arc::clone(&tree.0);
        py.detach(|| {
            let refresh = self.view.show(tree);
            let mount = self.mounted().clone();
            if let Some(mount) = mount {
                refresh.stale.iter().for_each(|stale| invalidate(&mount, stale));
            }
        });
    }

    /// Returns a file descriptor that is readable while reads wait for chunks that were not taken.
    fn fileno(&self) -> i32 {
        self.view.waker().as_raw_fd()
    }

    /// Takes up to `count_max` chunks for which reads wait. The caller fetches them.
    fn take_requests<'py>(&self, py: Python<'py>, count_max: usize) -> Bound<'py, PyBytes> {
        chunk_list::write(py, self.view.take_requests(count_max))
    }

    /// Completes the reads that waited for these chunks, which are in the store now.
    fn arrived(&self, py: Python<'_>, ids: &[u8]) -> PyResult<()> {
        let ids = chunk_list::parse(ids)?;
        py.detach(|| self.view.arrived(&ids));
        Ok(())
    }

    /// Fails the reads that wait for these chunks.
    fn refuse(&self, py: Python<'_>, ids: &[u8]) -> PyResult<()> {
        let ids = chunk_list::parse(ids)?;
        py.detach(|| self.view.refuse(&ids));
        Ok(())
    }

    /// Returns whether it is mounted; false if someone else has unmounted it.
    fn is_open(&self) -> bool {
        self.mounted().as_ref().is_some_and(|mount| mount.is_open())
    }

    /// Unmounts it, even if its files are open. Suspended reads fail.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mount = self.mounted().take();
        py.detach(|| {
            self.view.end();
            mount.map_or(Ok(()), |mount| mount.close())
        })
        .map_err(|error| failed(py, &error))
    }
}

impl PyView {
    fn mounted(&self) -> MutexGuard<'_, Option<Arc<Mount>>> {
        self.mount.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn invalidate(mount: &Mount, stale: &Stale) {
    // Ignore errors: the kernel may not have cached the item, or the mount may no longer exist.
    let _ = match stale {
        Stale::Node { number } => mount.invalidate_node(*number, 0, 0),
        Stale::Name { directory, name } => mount.invalidate_entry(*directory, name),
    };
}

/// A tree that is written into a directory.
#[pyclass(frozen, module = "mesh_fs._core", name = "Unpacked")]
pub(crate) struct PyUnpacked(Mutex<Option<Unpacked>>);

#[pymethods]
impl PyUnpacked {
    /// Opens an empty directory, or creates it.
    #[new]
    fn begin(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let unpacked = Unpacked::begin(&directory).map_err(|error| raise(py, "MountError", &error));
        Ok(Self(Mutex::new(Some(unpacked?))))
    }

    /// Writes a tree, or its differences from the previous one.
    fn show(&self, py: Python<'_>, tree: &PyTree, store: &PyStore) -> PyResult<()> {
        let (tree, store) = (Arc::clone(&tree.0), Arc::clone(&store.0));
        py.detach(|| {
            let mut unpacked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            unpacked.as_mut().map_or(Ok(()), |unpacked| unpacked.show(tree, &store))
        })
        .map_err(|error| {
            let is_missing = matches!(error, UnpackError::Missing(..));
            raise(py, if is_missing { "ChunksMissing" } else { "MountError" }, &error)
        })
    }

    /// Removes everything that was written.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let unpacked = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| unpacked.map_or(Ok(()), Unpacked::close))
            .map_err(|error| raise(py, "MountError", &error))
    }
}
