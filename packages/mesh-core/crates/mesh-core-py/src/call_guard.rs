//! A guard of a call whose replies are awaited.

use crate::engine_backend::EngineBackend;
use mesh_wire::id::PortId;
use pyo3::prelude::*;

/// Keeps a call alive while anything waits for it. Implemented in Rust because CPython discards an
/// exception that a signal handler raises during a Python finalizer, and the signal would be lost.
#[pyclass(frozen, module = "mesh_core._core")]
pub(crate) struct CallGuard {
    engine: EngineBackend,
    reply_port: PortId,
}

impl CallGuard {
    pub(crate) fn new(engine: EngineBackend, reply_port: PortId) -> Self {
        Self { engine, reply_port }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.engine.abandon(self.reply_port);
    }
}
