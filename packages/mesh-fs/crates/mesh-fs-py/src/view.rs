//! A tree, shown by a mount or unpacked.

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

/// One tree on one host.
#[pyclass(frozen, module = "mesh_fs._core", name = "View")]
pub(crate) struct PyView {
    view: Arc<View>,
    mount: Mutex<Option<Arc<Mount>>>,
}

fn failed(py: Python<'_>, error: &MountError) -> PyErr {
    raise(py, if error.is_forbidden() { "MountForbidden" } else { "MountError" }, error)
}

#[pymethods]
impl PyView {
    /// Makes a view of a tree, whose chunks are in a store or will come into it.
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

    /// Mounts it.
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

    /// Shows another tree: what has changed is seen at once.
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

    /// Readable while there are chunks that a read waits for and nobody has taken on.
    fn fileno(&self) -> i32 {
        self.view.bell().as_raw_fd()
    }

    /// Takes on chunks that reads wait for.
    fn take_wanted<'py>(&self, py: Python<'py>, count_max: usize) -> Bound<'py, PyBytes> {
        chunk_list::write(py, self.view.take_wanted(count_max))
    }

    /// Answers the reads that waited for these, which are in the store now.
    fn arrived(&self, py: Python<'_>, ids: &[u8]) -> PyResult<()> {
        let ids = chunk_list::parse(ids)?;
        py.detach(|| self.view.arrived(&ids));
        Ok(())
    }

    /// Fails the reads that wait for these.
    fn refuse(&self, py: Python<'_>, ids: &[u8]) -> PyResult<()> {
        let ids = chunk_list::parse(ids)?;
        py.detach(|| self.view.refuse(&ids));
        Ok(())
    }

    /// Whether it is mounted; not any more if somebody else has unmounted it.
    fn is_open(&self) -> bool {
        self.mounted().as_ref().is_some_and(|mount| mount.is_open())
    }

    /// Unmounts it, also while files of it are open; reads that wait fail.
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
    // What the kernel does not know is no news for it; and a mount that is gone shows nothing.
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
    /// Takes a directory that is empty, or makes it.
    #[new]
    fn begin(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let unpacked = Unpacked::begin(&directory).map_err(|error| raise(py, "MountError", &error));
        Ok(Self(Mutex::new(Some(unpacked?))))
    }

    /// Writes a tree, or what is different from the one before.
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

    /// Removes what was written.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let unpacked = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| unpacked.map_or(Ok(()), Unpacked::close))
            .map_err(|error| raise(py, "MountError", &error))
    }
}
