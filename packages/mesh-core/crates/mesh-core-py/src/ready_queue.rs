//! Python bindings for event loops: the queue of ready ports, and the reader of the connections.

use crate::engine_backend::EngineBackend;
use mesh_runtime::engine::loop_reader::LoopReader;
use mesh_runtime::engine::parker::Waker;
use mesh_runtime::engine::ready::ReadyQueue;
use pyo3::prelude::*;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// A queue of ports that became ready, to be polled by an event loop.
#[pyclass(frozen, name = "ReadyQueue", module = "mesh_core._core")]
pub(crate) struct PyReadyQueue(pub(crate) Arc<ReadyQueue>);

#[pymethods]
impl PyReadyQueue {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self(Arc::new(ReadyQueue::new()?)))
    }

    fn fileno(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    fn take(&self) -> Vec<u64> {
        self.0.take().into_iter().map(|port| port.0).collect()
    }
}

/// Reads the connections of an engine on the thread of an event loop.
#[pyclass(frozen, name = "LoopReader", module = "mesh_core._core")]
pub(crate) struct PyLoopReader(Reader);

enum Reader {
    Connections(LoopReader),
    /// A process of a simulation has none; its descriptor is never readable.
    Nothing(Waker),
}

impl PyLoopReader {
    pub(crate) fn new(engine: &EngineBackend, queue: &PyReadyQueue) -> PyResult<Self> {
        Ok(Self(match engine {
            EngineBackend::Real(engine) => {
                Reader::Connections(LoopReader::new(Arc::clone(engine), Arc::clone(&queue.0)))
            }
            EngineBackend::Simulated(_) => Reader::Nothing(Waker::new()?),
        }))
    }
}

#[pymethods]
impl PyLoopReader {
    fn fileno(&self) -> RawFd {
        match &self.0 {
            Reader::Connections(reader) => reader.as_fd().as_raw_fd(),
            Reader::Nothing(waker) => waker.as_fd().as_raw_fd(),
        }
    }

    /// Records whether the loop watches the descriptor.
    fn set_attached(&self, is_attached: bool) {
        if let Reader::Connections(reader) = &self.0 {
            reader.set_attached(is_attached);
        }
    }

    /// Reads the data that has arrived, and returns the ports that became ready. Returns `None` if
    /// another thread is reading it.
    fn read(&self, py: Python<'_>) -> Option<Vec<u64>> {
        let Reader::Connections(reader) = &self.0 else { return Some(Vec::new()) };
        let ports = py.detach(|| reader.read())?;
        Some(ports.into_iter().map(|port| port.0).collect())
    }
}
