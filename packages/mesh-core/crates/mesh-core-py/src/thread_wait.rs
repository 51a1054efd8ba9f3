//! The state of a Python thread that waits in the engine.

use mesh_runtime::engine::Engine;
use mesh_runtime::engine::parker::Parker;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

thread_local! {
    /// The parker of this thread and the engine that it belongs to.
    static PARKER: RefCell<Option<(*const Engine, Arc<Parker>)>> = const { RefCell::new(None) };
}

/// The parker of this thread for an engine.
pub(crate) fn parker(engine: &Arc<Engine>) -> Arc<Parker> {
    let owner = Arc::as_ptr(engine);
    PARKER.with_borrow_mut(|slot| match slot {
        Some((known, parker)) if *known == owner => Arc::clone(parker),
        _ => {
            let parker = engine.parker();
            *slot = Some((owner, Arc::clone(&parker)));
            parker
        }
    })
}

pub(crate) fn seconds(value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        PyValueError::new_err(format!("timeout {value} is not a number of seconds from 0 up"))
    })
}

/// Raises the exception that was sent to this thread while it slept: in the main thread the
/// exception of a signal handler, in other threads an exception that another thread has set, which
/// CPython raises only when Python code runs.
pub(crate) fn interruptions(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    py.run(c"pass", None, None)
}

pub(crate) fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}
