//! Python binding of a log of message events.

use crate::engine_backend::EngineBackend;
use mesh_runtime::events::{LogFile, LogNames};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;

/// The state of a log: paths of files that were started; paths and lengths in bytes of files that
/// were completed; number of files that are ready for use; bytes used and size of the current file;
/// number of buffered events; number of dropped events; names of endpoints that the caller does not
/// know yet.
type State<'py> = (
    Vec<PathBuf>,
    Vec<(PathBuf, usize)>,
    usize,
    usize,
    usize,
    usize,
    u64,
    Vec<Bound<'py, PyBytes>>,
);

/// One event log of an engine.
#[pyclass(frozen, name = "EventLog", module = "mesh_core._core")]
pub(crate) struct PyEventLog {
    engine: EngineBackend,
    number: u32,
}

impl PyEventLog {
    pub(crate) fn open(engine: &EngineBackend, waiting_max: usize, since_start: bool) -> Self {
        let number = engine.with_node(|node| node.events().open_log(waiting_max, since_start));
        Self { engine: engine.clone(), number }
    }
}

#[pymethods]
impl PyEventLog {
    /// Adds a file; pages are allocated for its first `len` bytes.
    #[expect(clippy::too_many_arguments, reason = "a file and its names")]
    fn add_file(
        &self,
        py: Python<'_>,
        file: RawFd,
        len: usize,
        initial_path: PathBuf,
        prefix: String,
        suffix: String,
        time_base_ns: i64,
    ) -> PyResult<()> {
        let names = LogNames { initial_path, prefix, suffix, time_base_ns };
        let file = py.detach(|| LogFile::open(borrowed(file), len, names))?;
        self.engine.with_node(|node| {
            if let Some(log) = node.events().log(self.number) {
                log.add_file(file);
            }
        });
        Ok(())
    }

    /// Completes the current file; the next event starts another one.
    fn rotate(&self) {
        self.engine.with_node(|node| {
            if let Some(log) = node.events().log(self.number) {
                log.rotate();
            }
        });
    }

    /// Returns the state of the log and the names of endpoints after the first `known`.
    fn state<'py>(&self, py: Python<'py>, known: usize) -> State<'py> {
        let (state, names) = self.engine.with_node(|node| {
            let events = node.events();
            let names: Vec<Vec<u8>> = events.endpoints(known).map(<[u8]>::to_vec).collect();
            (events.log(self.number).map(|log| log.take_state()).unwrap_or_default(), names)
        });
        // The files are unmapped here, outside the lock of the node, so that senders do not wait.
        let completed = state.completed.iter().map(|one| (one.path().clone(), one.len())).collect();
        let names = names.iter().map(|name| PyBytes::new(py, name)).collect();
        let (used, capacity) = (state.used, state.capacity);
        (state.started, completed, state.ready, used, capacity, state.waiting, state.dropped, names)
    }

    /// Closes the log. Files that have not been started stay unused.
    fn close(&self) {
        drop(self.engine.with_node(|node| node.events().close_log(self.number)));
    }
}

#[expect(unsafe_code, reason = "a descriptor of Python's")]
fn borrowed<'a>(file: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller keeps the descriptor open until the call returns, and the borrow does not
    // outlive the call.
    unsafe { BorrowedFd::borrow_raw(file) }
}
