//! One message as Python sees it.

use mesh_runtime::engine::Engine;
use mesh_runtime::node::Answer;
use mesh_runtime::origin::Meta;
use mesh_wire::frame::{Frame, Head, Hold, Kind, Part};
use mesh_wire::id::{Address, PortId, ProcId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A message or an answer that came in.
#[pyclass(frozen, module = "mesh_core._core")]
pub(crate) struct Message {
    pub(crate) frame: Frame,
    /// Shared memory that the message holds until somebody opens it.
    held: Option<Held>,
}

/// What is given back when nobody has opened it.
struct Held {
    engine: Arc<Engine>,
    holds: Vec<Hold>,
    is_open: AtomicBool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !*self.is_open.get_mut() && !self.engine.is_forsaken() {
            self.engine.with_node(|node| {
                for hold in &self.holds {
                    node.release(hold.owner, hold.segment, hold.generation);
                }
            });
        }
    }
}

impl Message {
    /// A message or an answer that has come in.
    pub(crate) fn of_frame(frame: Frame, engine: &Arc<Engine>) -> Self {
        let (me, sender) = (engine.me(), frame.head.from.proc);
        let agent = me.host.agent();
        let mut holds = frame.holds();
        holds.retain(|hold| [sender, me, agent].contains(&hold.owner));
        let held = (!holds.is_empty()).then(|| {
            let (engine, is_open) = (Arc::clone(engine), AtomicBool::new(false));
            Held { engine, holds, is_open }
        });
        Self { frame, held }
    }

    /// What the message makes this process hold.
    pub(crate) fn holds(&self) -> &[Hold] {
        self.held.as_ref().map_or(&[], |held| &held.holds)
    }

    /// Takes over who gives the shared parts back; `false` when somebody has before.
    pub(crate) fn open(&self) -> bool {
        self.held.as_ref().is_none_or(|held| !held.is_open.swap(true, Ordering::Relaxed))
    }

    /// A part that travels behind the body, as an object of its own that can be written to.
    pub(crate) fn inline_buffer<'py>(
        &self,
        py: Python<'py>,
        part: Part,
    ) -> PyResult<Bound<'py, PyAny>> {
        let body = self.frame.body();
        let (start, len) = (part.offset as usize, part.len as usize);
        let bytes = start.checked_add(len).and_then(|end| body.get(start..end));
        let bytes = bytes.ok_or_else(|| PyValueError::new_err("a part lies outside its frame"))?;
        Ok(PyByteArray::new(py, bytes).into_any())
    }

    pub(crate) fn of_answer(answer: Answer, engine: &Arc<Engine>) -> Self {
        Self::of_frame(answer.frame, engine)
    }
}

#[pymethods]
impl Message {
    /// What the frame is for: the number of its kind.
    #[getter]
    fn kind(&self) -> u8 {
        self.frame.head.kind as u8
    }

    /// 0 for a value, else why there is none.
    #[getter]
    fn code(&self) -> u8 {
        self.frame.head.flags
    }

    /// The rank of the receiver in the region called, or of the sender of an answer.
    #[getter]
    fn rank(&self) -> u32 {
        self.frame.head.rank
    }

    /// The port it was sent to.
    #[getter(to_port)]
    fn receiver_port(&self) -> u64 {
        self.frame.head.to.port.0
    }

    /// The process that sent it.
    #[getter(from_proc)]
    fn sender_proc(&self) -> u64 {
        self.frame.head.from.proc.to_u64()
    }

    /// Where an answer goes; 0 when none is wanted.
    #[getter(from_port)]
    fn sender_port(&self) -> u64 {
        self.frame.head.from.port.0
    }

    /// What the sender has put before the body, without where the message comes from.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, Meta::of(&self.frame).rest)
    }

    /// Trace, span and flags of what the message was sent in; `None` when it does not say.
    #[getter]
    fn trace<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        Meta::of(&self.frame).trace().map(|trace| PyBytes::new(py, trace))
    }

    /// Where an answer to this goes, and as whom: what [`Message::at`] takes.
    fn address(&self) -> (u64, u64, u64, u64, u32) {
        let head = &self.frame.head;
        let (to, from) = (head.to, head.from);
        (to.proc.to_u64(), to.port.0, from.proc.to_u64(), from.port.0, head.rank)
    }

    /// A message without content that can be answered in the place of another.
    #[staticmethod]
    fn at(to_proc: u64, to_port: u64, from_proc: u64, from_port: u64, rank: u32) -> Self {
        let address = |proc, port| Address { proc: ProcId::from_u64(proc), port: PortId(port) };
        let to = address(to_proc, to_port);
        let mut head = Head::new(Kind::Call, to, address(from_proc, from_port));
        head.rank = rank;
        Self { frame: Frame::bare(head), held: None }
    }

    /// Whether large parts travel beside the body.
    #[getter]
    fn has_parts(&self) -> bool {
        self.frame.head.part_count > 0
    }

    /// The body, without parts that travel behind it.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = self.frame.body();
        let inline = self.frame.parts().find(|part| part.segment == Part::INLINE);
        let end = inline.map_or(body.len(), |part| body.len().min(part.offset as usize));
        PyBytes::new(py, &body[..end])
    }
}
