//! Python binding of the log of the messages that actors receive.

use crate::message::Message;
use crate::shared_buffer::contiguous;
use mesh_runtime::origin::Meta;
use mesh_runtime::record_log::{Entry, RecordLog};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The kinds of entries that most messages cause.
const MESSAGE: u16 = 2;
const OUTCOME: u16 = 3;

/// The log of this process.
#[pyclass(frozen, name = "RecordLog", module = "mesh_core._core")]
pub(crate) struct PyRecordLog {
    log: Mutex<RecordLog>,
    on_stop: Py<PyAny>,
}

impl PyRecordLog {
    fn write(&self, entry: &Entry<'_>, is_kept: bool) -> io::Result<()> {
        // An append cannot leave the log in an invalid state: the length is written last.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.append(entry, is_kept)
    }

    /// Reports that the log has stopped, without an exception: the actor continues.
    fn report(&self, py: Python<'_>, result: io::Result<()>) {
        let Err(error) = result else { return };
        if let Err(raised) = self.on_stop.call1(py, (error.to_string(),)) {
            raised.write_unraisable(py, None);
        }
    }
}

#[pymethods]
impl PyRecordLog {
    /// Creates a log in a new directory, with files of `bytes_max` in all.
    ///
    /// If the log cannot be continued, it stops, and `on_stop` is called once with the cause.
    #[new]
    fn new(folder: PathBuf, bytes_max: usize, on_stop: Py<PyAny>) -> PyResult<Self> {
        let log = Mutex::new(RecordLog::create(&folder, bytes_max)?);
        Ok(Self { log, on_stop })
    }

    /// Writes an entry.
    #[pyo3(signature = (kind, actor, first, second, fields, payloads=Vec::new(), *, is_kept=false))]
    #[expect(clippy::too_many_arguments, reason = "the parts of an entry")]
    fn append(
        &self,
        py: Python<'_>,
        kind: u16,
        actor: u64,
        first: u64,
        second: u64,
        fields: &[u8],
        payloads: Vec<PyBuffer<u8>>,
        is_kept: bool,
    ) -> PyResult<()> {
        let slices = payloads.iter().map(contiguous).collect::<PyResult<Vec<_>>>()?;
        let values = [first, second];
        let entry = Entry { kind, actor, values, fields, payloads: &slices };
        let result = py.detach(|| self.write(&entry, is_kept));
        self.report(py, result);
        Ok(())
    }

    /// Writes the entry of a message without large parts.
    fn append_message(&self, py: Python<'_>, actor: u64, number: u64, message: &Message) {
        let head = &message.frame.head;
        let about = number << 32 | u64::from(head.rank) << 1 | u64::from(head.from.port.0 != 0);
        let entry = Entry {
            kind: MESSAGE,
            actor,
            values: [head.from.proc.to_u64(), about],
            fields: Meta::of(&message.frame).rest,
            payloads: &[&message.frame.body()],
        };
        self.report(py, self.write(&entry, false));
    }

    /// Writes the entry of a message that returned a value without large parts.
    fn append_result(&self, py: Python<'_>, actor: u64, number: u64, body: &[u8]) {
        let values = [number, 0];
        let entry = Entry { kind: OUTCOME, actor, values, fields: &[], payloads: &[body] };
        self.report(py, self.write(&entry, false));
    }
}
