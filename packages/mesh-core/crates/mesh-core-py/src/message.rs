//! Python binding of a received message.

use crate::engine_backend::EngineBackend;
use mesh_runtime::node::Reply;
use mesh_runtime::origin::Meta;
use mesh_wire::frame::{Frame, Head, Kind, Part, SegmentRef};
use mesh_wire::id::{Address, PortId, ProcId};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use std::sync::atomic::{AtomicBool, Ordering};

/// A received message or reply.
#[pyclass(frozen, module = "mesh_core._core")]
pub(crate) struct Message {
    pub(crate) frame: Frame,
    /// References to shared memory, released on drop unless the message was opened.
    unopened: Option<UnopenedRefs>,
}

/// The shared-memory references of a message that has not been opened yet.
struct UnopenedRefs {
    engine: EngineBackend,
    segment_refs: Vec<SegmentRef>,
    is_open: AtomicBool,
}

impl Drop for UnopenedRefs {
    fn drop(&mut self) {
        if !*self.is_open.get_mut() && !self.engine.is_aborted() {
            self.engine.with_node(|node| {
                for segment_ref in &self.segment_refs {
                    node.release(segment_ref.owner, segment_ref.segment, segment_ref.generation);
                }
            });
        }
    }
}

impl Message {
    /// Wraps a received frame and takes over the shared-memory references that it carries.
    pub(crate) fn of_frame(frame: Frame, engine: &EngineBackend) -> Self {
        let (me, sender) = (engine.me(), frame.head.from.proc);
        let agent = me.host.agent();
        let mut segment_refs = frame.segment_refs();
        segment_refs.retain(|segment_ref| [sender, me, agent].contains(&segment_ref.owner));
        let unopened = (!segment_refs.is_empty()).then(|| {
            let (engine, is_open) = (engine.clone(), AtomicBool::new(false));
            UnopenedRefs { engine, segment_refs, is_open }
        });
        Self { frame, unopened }
    }

    /// The shared-memory references that this message makes the process hold.
    pub(crate) fn segment_refs(&self) -> &[SegmentRef] {
        self.unopened.as_ref().map_or(&[], |unopened| &unopened.segment_refs)
    }

    /// Transfers the responsibility for releasing the shared parts to the caller. Returns `false`
    /// if the message has been opened before.
    pub(crate) fn open(&self) -> bool {
        self.unopened
            .as_ref()
            .is_none_or(|unopened| !unopened.is_open.swap(true, Ordering::Relaxed))
    }

    /// Copies a part that was sent inline, behind the body, into a new writable `bytearray`.
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

    pub(crate) fn of_reply(reply: Reply, engine: &EngineBackend) -> Self {
        Self::of_frame(reply.frame, engine)
    }
}

#[pymethods]
impl Message {
    /// The number of the frame's kind.
    #[getter]
    fn kind(&self) -> u8 {
        self.frame.head.kind as u8
    }

    /// 0 for a value, otherwise a fault code.
    #[getter]
    fn code(&self) -> u8 {
        self.frame.head.flags
    }

    /// The rank of the receiver in the called region; for a reply, the rank of its sender.
    #[getter]
    fn rank(&self) -> u32 {
        self.frame.head.rank
    }

    /// The port that the message was sent to.
    #[getter(to_port)]
    fn receiver_port(&self) -> u64 {
        self.frame.head.to.port.0
    }

    /// The process that sent the message.
    #[getter(from_proc)]
    fn sender_proc(&self) -> u64 {
        self.frame.head.from.proc.to_u64()
    }

    /// The port that expects the reply; 0 if no reply is expected.
    #[getter(from_port)]
    fn sender_port(&self) -> u64 {
        self.frame.head.from.port.0
    }

    /// The metadata that precedes the body, without the origin.
    #[getter]
    fn meta<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, Meta::of(&self.frame).rest)
    }

    /// The trace, span and flags of the sender's span; `None` if the message was sent outside of a
    /// span.
    #[getter]
    fn trace<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        Meta::of(&self.frame).trace().map(|trace| PyBytes::new(py, trace))
    }

    /// The arguments of [`Message::at`] for this message: receiver, reply address and rank.
    fn address(&self) -> (u64, u64, u64, u64, u32) {
        let head = &self.frame.head;
        let (to, from) = (head.to, head.from);
        (to.proc.to_u64(), to.port.0, from.proc.to_u64(), from.port.0, head.rank)
    }

    /// Creates a message without content, so that another message with this address can be replied
    /// to.
    #[staticmethod]
    fn at(to_proc: u64, to_port: u64, from_proc: u64, from_port: u64, rank: u32) -> Self {
        let address = |proc, port| Address { proc: ProcId::from_u64(proc), port: PortId(port) };
        let to = address(to_proc, to_port);
        let mut head = Head::new(Kind::Call, to, address(from_proc, from_port));
        head.rank = rank;
        Self { frame: Frame::bare(head), unopened: None }
    }

    /// Whether the message has large parts outside its body.
    #[getter]
    fn has_parts(&self) -> bool {
        self.frame.head.part_count > 0
    }

    /// The body, without inline parts.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let body = self.frame.body();
        let inline = self.frame.parts().find(|part| part.segment == Part::INLINE);
        let end = inline.map_or(body.len(), |part| body.len().min(part.offset as usize));
        PyBytes::new(py, &body[..end])
    }
}
