//! Snapshots and ledgers, which the client uses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use mesh_chunks::ChunkId;
use mesh_snapshot::{Kind, LedgerFile, Options, ReadError, Snapshot, Tree};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::chunk_list;
use crate::errors::raise;
use crate::memory::SharedBuffer;

/// State of a directory at one time, with access to the bytes of its chunks.
#[pyclass(frozen, module = "mesh_fs._core", name = "Snapshot")]
pub(crate) struct PySnapshot(Snapshot);

#[pymethods]
impl PySnapshot {
    /// Takes a snapshot of a directory.
    ///
    /// Files that are unchanged since `previous`, or since the ledger was written if there is no
    /// previous snapshot, are not read.
    #[staticmethod]
    #[pyo3(signature = (root, previous = None, ledger = None, *, ignore, ignore_files,
                        cross_file_systems, skip_unreadable, threads))]
    #[expect(clippy::too_many_arguments, reason = "they are named where it is called")]
    fn take(
        py: Python<'_>,
        root: PathBuf,
        previous: Option<&Self>,
        ledger: Option<&PyLedger>,
        ignore: Vec<String>,
        ignore_files: Vec<String>,
        cross_file_systems: bool,
        skip_unreadable: bool,
        threads: usize,
    ) -> PyResult<Self> {
        let options =
            Options { ignore, ignore_files, cross_file_systems, skip_unreadable, threads };
        let (previous, ledger) = (previous.map(|one| &one.0), ledger.map(|one| &one.0));
        let take = || match ledger.filter(|_| previous.is_none()).and_then(LedgerFile::load) {
            Some(ledger) => Snapshot::resume(&root, &options, &ledger),
            None => Snapshot::take(&root, &options, previous),
        };
        py.detach(take).map(Self).map_err(|error| raise(py, "SnapshotError", &error))
    }

    /// Returns the number of files that were read for the snapshot, and their total size in bytes.
    fn read(&self) -> (u64, u64) {
        (self.0.files_read(), self.0.bytes_read())
    }

    /// Returns the recipe, from which a host fetches the description of the tree.
    fn recipe<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.0.recipe())
    }

    /// Returns the id of the snapshot.
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.id().0)
    }

    /// Returns the paths that were left out because they could not be read.
    fn skipped(&self) -> Vec<PathBuf> {
        self.0.skipped().to_vec()
    }

    /// Returns the path of each directory in the snapshot, without the root and excluded ones.
    fn directories(&self, py: Python<'_>) -> PyResult<Vec<PathBuf>> {
        py.detach(|| Tree::decode(self.0.stream()).map(|tree| directories(&tree)))
            .map_err(|error| raise(py, "SnapshotError", &error))
    }

    /// Writes chunks contiguously into memory until the next one does not fit.
    ///
    /// Returns the length of each chunk, or -1 for a chunk whose file has changed. Chunks that this
    /// snapshot does not have are read from `before`.
    #[pyo3(signature = (ids, into, before = None))]
    fn fill(
        &self,
        py: Python<'_>,
        ids: &[u8],
        into: &Bound<'_, PyAny>,
        before: Option<&Self>,
    ) -> PyResult<Vec<i64>> {
        let ids = chunk_list::parse(ids)?;
        let mut into = SharedBuffer::of(into)?;
        let memory = into.bytes_mut()?;
        let snapshots: Vec<_> =
            [Some(self), before].into_iter().flatten().map(|one| &one.0).collect();
        Ok(py.detach(|| fill(&snapshots, &ids, memory)))
    }
}

/// Location of the ledger of a directory.
#[pyclass(frozen, module = "mesh_fs._core", name = "Ledger")]
pub(crate) struct PyLedger(LedgerFile);

#[pymethods]
impl PyLedger {
    /// Locates the ledger in a folder, which is created if needed.
    #[new]
    #[pyo3(signature = (folder, root, *, ignore, ignore_files, cross_file_systems,
                        skip_unreadable))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        root: PathBuf,
        ignore: Vec<String>,
        ignore_files: Vec<String>,
        cross_file_systems: bool,
        skip_unreadable: bool,
    ) -> PyResult<Self> {
        let options =
            Options { ignore, ignore_files, cross_file_systems, skip_unreadable, threads: 1 };
        py.detach(|| LedgerFile::open(&folder, &root, &options))
            .map(Self)
            .map_err(|error| raise(py, "StoreError", &error))
    }

    /// Writes the records of the files of a snapshot; returns their length in bytes.
    fn save(&self, py: Python<'_>, snapshot: &PySnapshot) -> PyResult<usize> {
        py.detach(|| {
            let ledger = snapshot.0.ledger();
            self.0.save(&ledger)?;
            Ok(ledger.len())
        })
    }
}

fn directories(tree: &Tree) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut todo = vec![(PathBuf::new(), Tree::ROOT)];
    while let Some((directory, node)) = todo.pop() {
        for (name, node) in tree.children(node) {
            if tree.attributes(node).kind == Kind::Directory {
                let path = directory.join(OsStr::from_bytes(name));
                found.push(path.clone());
                todo.push((path, node));
            }
        }
    }
    found
}

fn fill(snapshots: &[&Snapshot], ids: &[ChunkId], memory: &mut [u8]) -> Vec<i64> {
    let mut lengths = Vec::with_capacity(ids.len());
    let mut filled = 0;
    for id in ids {
        let mut read = snapshots.iter().map(|one| one.read_to(id, &mut memory[filled..]));
        match read.find(|read| matches!(read, Ok(_) | Err(ReadError::BufferTooSmall))) {
            Some(Ok(len)) => {
                lengths.push(i64::try_from(len).expect("a chunk is shorter than that"));
                filled += len;
            }
            Some(Err(_)) => break,
            None => lengths.push(-1),
        }
    }
    lengths
}
