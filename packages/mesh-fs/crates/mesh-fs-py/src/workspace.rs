//! A tree, written next to files of others.

use std::path::PathBuf;
use std::sync::Arc;

use mesh_view::Workspace;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::store::PyStore;
use crate::tree::PyTree;

/// A directory that takes on trees, and in which others may have files as well.
#[pyclass(frozen, module = "mesh_fs._core", name = "Workspace")]
pub(crate) struct PyWorkspace(Workspace);

#[pymethods]
impl PyWorkspace {
    /// Takes a directory, or makes it.
    #[new]
    fn open(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let opened = py.detach(|| Workspace::open(&directory));
        opened.map(Self).map_err(|error| raise(py, "WorkspaceError", &error))
    }

    /// Gives the chunks that an update would write now, each once.
    fn needed<'py>(&self, py: Python<'py>, tree: &PyTree) -> PyResult<Bound<'py, PyBytes>> {
        let tree = Arc::clone(&tree.0);
        let needed = py.detach(|| self.0.needed(&tree));
        let needed = needed.map_err(|error| raise(py, "WorkspaceError", &error))?;
        Ok(chunk_list::write(py, needed))
    }

    /// Writes what is not as in the tree, and removes what was written before and is not in it;
    /// gives how many were written, removed, and overwritten, and the bytes that were written.
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
