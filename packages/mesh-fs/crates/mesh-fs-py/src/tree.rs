//! The description of a tree, which hosts use.

use std::sync::Arc;

use mesh_chunks::ChunkId;
use mesh_snapshot::{DecodeError, Joined, Recipe, Tree};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::store::PyStore;

/// List of the chunks of the description of a tree, or of a longer such list.
#[pyclass(frozen, module = "mesh_fs._core", name = "Recipe")]
pub(crate) struct PyRecipe(Recipe);

fn failed(py: Python<'_>, error: &DecodeError) -> PyErr {
    raise(py, "SnapshotError", error)
}

#[pymethods]
impl PyRecipe {
    /// Parses a recipe.
    #[new]
    fn parse(py: Python<'_>, recipe: &[u8]) -> PyResult<Self> {
        Recipe::parse(recipe).map(Self).map_err(|error| failed(py, &error))
    }

    /// Returns the chunks of this recipe.
    fn chunks<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        chunk_list::write(py, self.0.chunks().iter().map(|(id, _)| *id))
    }

    /// Joins the chunks to the tree or to the next recipe. The store must contain all of them.
    fn join<'py>(&self, py: Python<'py>, store: &PyStore) -> PyResult<Bound<'py, PyAny>> {
        let get = |id: &ChunkId| store.0.get(id).ok().flatten();
        let joined = py.detach(|| match self.0.join(get)? {
            Joined::Stream(stream) => Tree::decode(&stream).map(|tree| Ok(Arc::new(tree))),
            Joined::Recipe(recipe) => Ok(Err(recipe)),
        });
        match joined.map_err(|error| failed(py, &error))? {
            Ok(tree) => Ok(Bound::new(py, PyTree(tree))?.into_any()),
            Err(recipe) => Ok(Bound::new(py, Self(recipe))?.into_any()),
        }
    }
}

/// The contents of a tree.
#[pyclass(frozen, module = "mesh_fs._core", name = "Tree")]
pub(crate) struct PyTree(pub(crate) Arc<Tree>);

#[pymethods]
impl PyTree {
    /// Returns the chunks of all files without duplicates, in the preferred order for fetching.
    fn chunks<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        chunk_list::write(py, self.0.chunks().map(|(id, _)| id))
    }

    /// Returns the number of entries, the number of files, the apparent size, and the stored size.
    ///
    /// Sizes are in bytes. The stored size is the total length of all chunks without duplicates.
    fn totals(&self) -> (u64, u64, u64, u64) {
        let totals = self.0.totals();
        (totals.entries, totals.files, totals.bytes, totals.stored)
    }
}
