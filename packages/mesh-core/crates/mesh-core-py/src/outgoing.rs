//! Messages that Python code sends, and their conversion for the engine.

use crate::segments::Packed;
use bytes::Bytes;
use mesh_runtime::node::{CallSpec, Target};
use mesh_runtime::origin::with_origin;
use mesh_wire::frame::{Kind, TAIL_LEN_MAX};
use mesh_wire::id::{PortId, ProcId};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// The receivers of a message, in the order of their ranks.
#[pyclass(frozen, name = "Targets", module = "mesh_core._core")]
pub(crate) struct PyTargets(Arc<[Target]>);

#[pymethods]
impl PyTargets {
    #[new]
    fn new(pairs: Vec<(u64, u32)>) -> Self {
        let target = |(proc, rank)| Target { proc: ProcId::from_u64(proc), rank };
        Self(pairs.into_iter().map(target).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, index: usize) -> PyResult<(u64, u32)> {
        let target = self.0.get(index);
        let target = target.ok_or_else(|| pyo3::exceptions::PyIndexError::new_err(index))?;
        Ok((target.proc.to_u64(), target.rank))
    }
}

impl PyTargets {
    /// The processes that will read the large parts; empty if the message has none.
    pub(crate) fn readers(&self, buffers: &[PyBuffer<u8>]) -> Vec<ProcId> {
        if buffers.is_empty() {
            return Vec::new();
        }
        self.0.iter().map(|target| target.proc).collect()
    }
}

/// An outgoing message, converted to a [`CallSpec`].
pub(crate) struct Outgoing<'a> {
    pub(crate) kind: Kind,
    pub(crate) targets: &'a PyTargets,
    pub(crate) port: u64,
    pub(crate) meta: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) packed: &'a Packed<'a>,
    pub(crate) window: u32,
    pub(crate) timeout: Option<Duration>,
}

impl Outgoing<'_> {
    pub(crate) fn spec(&self, py: Python<'_>) -> PyResult<CallSpec> {
        let tail_len = self.meta.len() + self.body.len() + self.packed.len();
        if tail_len > TAIL_LEN_MAX {
            return Err(too_long(tail_len));
        }
        let meta_len = u16::try_from(self.meta.len())
            .map_err(|_| PyValueError::new_err("endpoint name and region are too long"))?;
        Ok(CallSpec {
            kind: self.kind,
            targets: Arc::clone(&self.targets.0),
            port: PortId(self.port),
            meta_len,
            part_count: self.packed.part_count(),
            tail: tail_of(py, self.packed, self.meta, self.body),
            window: self.window,
            timeout: self.timeout,
        })
    }
}

/// Assembles the tail of a frame. Large parts are copied without the GIL.
pub(crate) fn tail_of(py: Python<'_>, packed: &Packed<'_>, meta: &[u8], body: &[u8]) -> Bytes {
    if packed.is_inline() { py.detach(|| packed.tail(meta, body)) } else { packed.tail(meta, body) }
}

/// Prepends the origin, if there is one, to the metadata of a message.
pub(crate) fn meta_from<'a>(origin: Option<&[u8]>, meta: &'a [u8]) -> PyResult<Cow<'a, [u8]>> {
    let Some(origin) = origin else { return Ok(Cow::Borrowed(meta)) };
    let whole = with_origin(origin, meta);
    whole.map(Cow::Owned).ok_or_else(|| PyValueError::new_err("no origin has this length"))
}

pub(crate) fn too_long(len: usize) -> PyErr {
    PyOverflowError::new_err(format!(
        "message of {len} bytes is over the limit of {TAIL_LEN_MAX}: \
         pass large data as buffers (numpy, bytes, torch) or in pieces"
    ))
}

pub(crate) fn sendable(kind: u8) -> PyResult<Kind> {
    match Kind::from_u8(kind) {
        Some(kind @ (Kind::Call | Kind::Post | Kind::Spawn)) => Ok(kind),
        _ => Err(PyValueError::new_err(format!("frames of kind {kind} are not sent by programs"))),
    }
}
