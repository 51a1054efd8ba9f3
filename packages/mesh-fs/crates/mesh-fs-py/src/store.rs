//! The store of a host.

use std::path::PathBuf;
use std::sync::Arc;

use mesh_chunks::{ChunkId, Store, StoreError, StoreOptions};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::memory::SharedBuffer;

/// The chunks that a host keeps on disk.
#[pyclass(frozen, module = "mesh_fs._core", name = "Store")]
pub(crate) struct PyStore(pub(crate) Arc<Store>);

fn failed(py: Python<'_>, error: &StoreError) -> PyErr {
    raise(py, "StoreError", error)
}

#[pymethods]
impl PyStore {
    /// Opens the store in a folder.
    #[new]
    #[pyo3(signature = (folder, *, budget_bytes, keep_cached))]
    fn open(
        py: Python<'_>,
        folder: PathBuf,
        budget_bytes: u64,
        keep_cached: bool,
    ) -> PyResult<Self> {
        let options = StoreOptions { budget_bytes, keep_cached, ..StoreOptions::default() };
        py.detach(|| Store::open(&folder, options))
            .map(|store| Self(Arc::new(store)))
            .map_err(|error| failed(py, &error))
    }

    /// Returns the given chunks that the store does not contain.
    fn missing<'py>(&self, py: Python<'py>, ids: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let ids = chunk_list::parse(ids)?;
        let missing = py.detach(|| self.0.missing(&ids));
        Ok(chunk_list::write(py, missing.into_iter().map(|place| ids[place])))
    }

    /// Writes chunks contiguously into memory until the next one does not fit.
    ///
    /// Returns the length of each chunk, or -1 for a chunk that the store does not contain.
    fn fill(&self, py: Python<'_>, ids: &[u8], into: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        let ids = chunk_list::parse(ids)?;
        let mut into = SharedBuffer::of(into)?;
        let memory = into.bytes_mut()?;
        py.detach(|| fill(&self.0, &ids, memory)).map_err(|error| failed(py, &error))
    }

    /// Adds chunks that are contiguous in memory.
    ///
    /// Returns the indices of chunks whose bytes do not match their ids; these are not added.
    fn take_in(
        &self,
        py: Python<'_>,
        ids: &[u8],
        lengths: Vec<u32>,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let ids = chunk_list::parse(ids)?;
        let data = SharedBuffer::of(data)?;
        let memory = data.bytes();
        py.detach(|| take_in(&self.0, &ids, &lengths, memory)).map_err(|error| failed(py, &error))
    }

    /// Returns bytes, chunks and packs on disk, and the number of damaged chunks and evicted packs.
    ///
    /// The last two are counted since the store was opened.
    fn usage(&self) -> (u64, u64, u64, u64, u64) {
        let usage = self.0.usage();
        (usage.bytes, usage.chunks, usage.packs, usage.damaged, usage.evicted)
    }
}

fn fill(store: &Store, ids: &[ChunkId], memory: &mut [u8]) -> Result<Vec<i64>, StoreError> {
    let mut lengths = Vec::with_capacity(ids.len());
    let mut filled = 0;
    for id in ids {
        let Some(length) = store.length(id) else {
            lengths.push(-1);
            continue;
        };
        let end = filled + length as usize;
        let Some(part) = memory.get_mut(filled..end) else { break };
        if store.read_keeping_cached(id, part)? {
            lengths.push(i64::from(length));
            filled = end;
        } else {
            lengths.push(-1);
        }
    }
    Ok(lengths)
}

fn take_in(
    store: &Store,
    ids: &[ChunkId],
    lengths: &[u32],
    memory: &[u8],
) -> Result<Vec<usize>, StoreError> {
    let mut damaged = Vec::new();
    let mut good = Vec::with_capacity(ids.len());
    let mut start = 0;
    for (place, (id, length)) in ids.iter().zip(lengths).enumerate() {
        let end = start + *length as usize;
        match memory.get(start..end) {
            Some(bytes) if id.fits(bytes) => good.push((*id, bytes)),
            _ => damaged.push(place),
        }
        start = end;
    }
    store.put_verified(&good)?;
    Ok(damaged)
}
