//! Python binding of the log of what actors receive.

use crate::message::Message;
use crate::shared_buffer::contiguous;
use mesh_runtime::origin::Meta;
use mesh_runtime::record_log::{Entry, RecordLog};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The kinds of entries that most messages cause.
const MESSAGE: u16 = 2;
const OUTCOME: u16 = 3;

/// The log of this process.
#[pyclass(frozen, name = "RecordLog", module = "mesh_core._core")]
pub(crate) struct PyRecordLog(Mutex<RecordLog>);

impl PyRecordLog {
    fn write(&self, entry: &Entry<'_>, is_kept: bool) -> PyResult<()> {
        // An append cannot leave the log in an invalid state: the length is written last.
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(log.append(entry, is_kept)?)
    }
}

#[pymethods]
impl PyRecordLog {
    /// Creates a log in a new directory, with files of `bytes_max` in all.
    #[new]
    fn new(folder: PathBuf, bytes_max: usize) -> PyResult<Self> {
        Ok(Self(Mutex::new(RecordLog::create(&folder, bytes_max)?)))
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
        py.detach(|| self.write(&entry, is_kept))
    }

    /// Writes the entry of a message without large parts.
    fn append_message(&self, actor: u64, number: u64, message: &Message) -> PyResult<()> {
        let head = &message.frame.head;
        let about = number << 32 | u64::from(head.rank) << 1 | u64::from(head.from.port.0 != 0);
        let entry = Entry {
            kind: MESSAGE,
            actor,
            values: [head.from.proc.to_u64(), about],
            fields: Meta::of(&message.frame).rest,
            payloads: &[&message.frame.body()],
        };
        self.write(&entry, false)
    }

    /// Writes the entry of a message that returned a value without large parts.
    fn append_result(&self, actor: u64, number: u64, body: &[u8]) -> PyResult<()> {
        let values = [number, 0];
        let entry = Entry { kind: OUTCOME, actor, values, fields: &[], payloads: &[body] };
        self.write(&entry, false)
    }
}
