//! Lists of chunks as Python represents them: the concatenated ids in a `bytes` object.

use mesh_chunks::ChunkId;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const ID_BYTES: usize = 32;

/// Parses a list.
pub(crate) fn parse(ids: &[u8]) -> PyResult<Vec<ChunkId>> {
    let (ids, rest) = ids.as_chunks::<ID_BYTES>();
    if !rest.is_empty() {
        let text = format!("{} bytes too many: each chunk id has {ID_BYTES} bytes", rest.len());
        return Err(PyValueError::new_err(text));
    }
    Ok(ids.iter().map(|id| ChunkId(*id)).collect())
}

/// Serializes a list.
pub(crate) fn write<'py>(
    py: Python<'py>,
    ids: impl IntoIterator<Item = ChunkId>,
) -> Bound<'py, PyBytes> {
    let joined: Vec<u8> = ids.into_iter().flat_map(|id| id.0).collect();
    PyBytes::new(py, &joined)
}
