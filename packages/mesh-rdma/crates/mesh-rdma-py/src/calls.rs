//! Calls into Python from threads that are not Python's, and the end of them.
//!
//! While Python is taken down, it ends each thread that wants to go on in it, by unwinding its
//! stack. Frames that were called from here cannot be unwound, and the process would be aborted. So
//! before that begins nobody is let in any more, and who is inside is waited for.

use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long the end waits for those that are inside; what they call may take as long as it likes.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often it looks.
const LOOK: Duration = Duration::from_micros(200);

static IS_OVER: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// Has the end of Python tell the end of the calls.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let end = wrap_pyfunction!(end_calls, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    Ok(())
}

/// Calls into Python, unless that is coming to its end.
pub(crate) fn with_python<R>(call: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    let _inside = Inside::enter()?;
    Python::try_attach(call)
}

/// In a forked child: the threads that were inside are the parent's.
pub(crate) fn forget() {
    INSIDE.store(0, Ordering::SeqCst);
}

struct Inside;

impl Inside {
    fn enter() -> Option<Self> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        let inside = Self;
        (!IS_OVER.load(Ordering::SeqCst)).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets nobody in any more.
#[pyfunction]
fn end_calls(py: Python<'_>) {
    IS_OVER.store(true, Ordering::SeqCst);
    py.detach(|| {
        let until = Instant::now() + PATIENCE;
        while INSIDE.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    });
}
