//! The extension module `mesh_core._core`, which contains all Python bindings of the Rust core.

use mesh_runtime::node::PORT_MARK;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

mod call_guard;
mod engine;
mod engine_backend;
mod event_log;
mod listener;
mod message;
mod outgoing;
mod ready_queue;
mod record_log;
mod region;
mod segments;
mod shared_buffer;
mod simulation;
mod supervisor;
mod thread_wait;
mod trust;

/// Registers the classes and functions of the module `mesh_core._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PORT_MARK", PyBytes::new(module.py(), &PORT_MARK))?;
    module.add_class::<message::Message>()?;
    module.add_class::<simulation::PySimulation>()?;
    module.add_class::<supervisor::PySupervisor>()?;
    module.add_class::<trust::PyKeys>()?;
    module.add_class::<event_log::PyEventLog>()?;
    module.add_class::<record_log::PyRecordLog>()?;
    shared_buffer::register(module)?;
    region::register(module)?;
    listener::register(module)?;
    engine::register(module)
}
