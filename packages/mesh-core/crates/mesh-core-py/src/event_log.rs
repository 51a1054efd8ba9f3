//! A log of message events, as Python keeps it.

use mesh_runtime::engine::Engine;
use mesh_runtime::events::{LogFile, LogNames};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::{BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;

/// What has become of a log: files that were begun; those that have ended, with their lengths; how
/// many are ready; bytes used and there of the one that is written to; how many events wait, and
/// how many were dropped; the names of endpoints that were not known.
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

/// One log of one engine.
#[pyclass(frozen, name = "EventLog", module = "mesh_core._core")]
pub(crate) struct PyEventLog {
    engine: Arc<Engine>,
    number: u32,
}

impl PyEventLog {
    pub(crate) fn open(engine: &Arc<Engine>, waiting_max: usize, since_start: bool) -> Self {
        let number = engine.with_node(|node| node.events().open_log(waiting_max, since_start));
        Self { engine: Arc::clone(engine), number }
    }
}

#[pymethods]
impl PyEventLog {
    /// Adds a file, `len` bytes of which have pages.
    #[expect(clippy::too_many_arguments, reason = "a file and its names")]
    fn extend(
        &self,
        py: Python<'_>,
        file: RawFd,
        len: usize,
        coming: PathBuf,
        prefix: String,
        suffix: String,
        time_base_ns: i64,
    ) -> PyResult<()> {
        let names = LogNames { coming, prefix, suffix, time_base_ns };
        let file = py.detach(|| LogFile::open(borrowed(file), len, names))?;
        self.engine.with_node(|node| {
            if let Some(log) = node.events().log(self.number) {
                log.extend(file);
            }
        });
        Ok(())
    }

    /// Ends the file that is written to.
    fn turn(&self) {
        self.engine.with_node(|node| {
            if let Some(log) = node.events().log(self.number) {
                log.turn();
            }
        });
    }

    /// Says what has become of it, and the names of endpoints behind the first `known`.
    fn state<'py>(&self, py: Python<'py>, known: usize) -> State<'py> {
        let (state, names) = self.engine.with_node(|node| {
            let events = node.events();
            let names: Vec<Vec<u8>> = events.endpoints(known).map(<[u8]>::to_vec).collect();
            (events.log(self.number).map(|log| log.take_state()).unwrap_or_default(), names)
        });
        // Here the files are given back, beside who sends.
        let ended = state.ended.iter().map(|one| (one.path().clone(), one.len())).collect();
        let names = names.iter().map(|name| PyBytes::new(py, name)).collect();
        let (used, room) = (state.used, state.room);
        (state.begun, ended, state.ready, used, room, state.waiting, state.dropped, names)
    }

    /// Ends the log: files that were not begun never are.
    fn close(&self) {
        drop(self.engine.with_node(|node| node.events().close_log(self.number)));
    }
}

#[expect(unsafe_code, reason = "a descriptor of Python's")]
fn borrowed<'a>(file: RawFd) -> BorrowedFd<'a> {
    // SAFETY: who calls has it open until the call returns, as it is a borrow of that length.
    unsafe { BorrowedFd::borrow_raw(file) }
}
