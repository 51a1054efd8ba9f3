//! Calls into Python from threads that Python did not create, and their shutdown.
//!
//! While the interpreter shuts down, it terminates each thread that tries to acquire the GIL, by
//! unwinding its stack. Rust frames below such a call cannot be unwound, so the process would be
//! aborted. For this reason an `atexit` hook refuses new calls and waits, for a limited time, for
//! those in progress.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long shutdown waits for calls in progress, whose duration is not limited.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The polling interval during shutdown.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

static IS_SHUT_DOWN: AtomicBool = AtomicBool::new(false);
static ACTIVE_CALLS: AtomicUsize = AtomicUsize::new(0);

/// Registers an `atexit` hook that ends calls from other threads.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let end = wrap_pyfunction!(end_calls, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

/// Calls into Python, unless the interpreter is shutting down.
pub(crate) fn with_python<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _active = ActiveCall::enter()?;
    Python::try_attach(call)
}

/// Resets the counter in a forked child: the calls in progress belong to threads of the parent.
pub(crate) fn reset_after_fork() {
    ACTIVE_CALLS.store(0, Ordering::SeqCst);
}

struct ActiveCall;

impl ActiveCall {
    fn enter() -> Option<Self> {
        ACTIVE_CALLS.fetch_add(1, Ordering::SeqCst);
        let active = Self;
        (!IS_SHUT_DOWN.load(Ordering::SeqCst)).then_some(active)
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        ACTIVE_CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses new calls and waits for those in progress.
#[pyfunction]
fn end_calls(py: Python<'_>) {
    IS_SHUT_DOWN.store(true, Ordering::SeqCst);
    py.detach(|| {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        while ACTIVE_CALLS.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(POLL_INTERVAL);
        }
    });
}
