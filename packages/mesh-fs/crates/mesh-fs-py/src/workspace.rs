//! Trees that are written into a directory with other files.

use std::path::PathBuf;
use std::sync::Arc;

use mesh_view::Workspace;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::store::PyStore;
use crate::tree::PyTree;

/// A directory into which trees are written, and which may contain other files as well.
#[pyclass(frozen, module = "mesh_fs._core", name = "Workspace")]
pub(crate) struct PyWorkspace(Workspace);

#[pymethods]
impl PyWorkspace {
    /// Opens a directory, or creates it.
    #[new]
    fn open(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| Workspace::open(&directory));
        opened.map(Self).map_err(|error| raise(py, "WorkspaceError", &error))
    }

    /// Returns the chunks that an update would write now, without duplicates.
    fn needed<'py>(&self, py: Python<'py>, tree: &PyTree) -> PyResult<Bound<'py, PyBytes>> {
        let tree = Arc::clone(&tree.0);
        let needed = py.detach(|| self.0.needed(&tree));
        let needed = needed.map_err(|error| raise(py, "WorkspaceError", &error))?;
        Ok(chunk_list::write(py, needed))
    }

    /// Writes the files that differ from the tree, and removes earlier files that the tree does not
    /// contain.
    ///
    /// Returns the number of files written, removed and overwritten, and the number of bytes
    /// written.
    fn update(
        &self,
        py: Python<'_>,
        tree: &PyTree,
        store: &PyStore,
    ) -> PyResult<(u64, u64, u64, u64)> {
        let (tree, store) = (Arc::clone(&tree.0), Arc::clone(&store.0));
        py.detach(|| self.0.update(&tree, &store))
            .map(|done| (done.written, done.removed, done.overwritten, done.bytes))
            .map_err(|error| raise(py, "WorkspaceError", &error))
    }
}
