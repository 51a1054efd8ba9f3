//! Python binding of the queue of ready ports.

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
