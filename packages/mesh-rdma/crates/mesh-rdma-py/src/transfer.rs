//! Python binding of asynchronous transfers.
#![expect(unsafe_code, reason = "copies memory that Python keeps alive")]

use crate::calls::with_python;
use crate::errors::raise;
use crate::handle::{DropWithGil, PyTarget};
use crate::local::Local;
use mesh_data::stop::interruptible;
use mesh_data::transfer::{Copy, Operation};
use mesh_data::{DataError, Direction, Stop, Transfer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread waits without the GIL before it checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Registers the function of this module in `mesh_rdma._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(submit, module)?)
}

/// Copies in progress.
#[pyclass(frozen, name = "Transfer", module = "mesh_rdma._core")]
pub(crate) struct PyTransfer(pub(crate) Arc<Transfer>);

#[pymethods]
impl PyTransfer {
    /// Waits for the transfer and copies while waiting. Returns whether all is done. Ctrl-C cancels
    /// the transfer.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.0.is_stale() {
            return Ok(true);
        }
        let until = limit_of(timeout)?.map(|limit| Instant::now() + limit);
        // A piece that waits for another process could take longer than the timeout of the caller.
        let may_run_pieces = until.is_none() || !self.0.may_block();
        loop {
            let next_check = Instant::now() + SIGNAL_CHECK_INTERVAL;
            let is_enough = || {
                let now = Instant::now();
                now >= next_check || until.is_some_and(|until| now >= until)
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_done = py.detach(|| {
                if may_run_pieces {
                    interruptible(is_interrupted, || self.0.run_pieces(is_enough));
                }
                self.0.wait(Some(left.unwrap_or(SIGNAL_CHECK_INTERVAL).min(SIGNAL_CHECK_INTERVAL)))
            });
            let interrupt = INTERRUPT.take().map_or_else(|| py.check_signals(), Err);
            if let Err(error) = interrupt {
                self.0.cancel();
                py.detach(|| self.0.wait(None));
                return Err(error);
            }
            if is_done || until.is_some_and(|until| Instant::now() >= until) {
                return Ok(is_done);
            }
        }
    }

    /// Whether the transfer has ended.
    fn is_done(&self) -> bool {
        self.0.is_stale() || self.0.is_done()
    }

    /// Raises the error of the transfer, if it failed.
    fn outcome(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.is_stale() {
            // The transfer continues in the parent, but its result is not visible here.
            return Err(raise(py, &DataError::Cancelled));
        }
        self.0.free_memory();
        match self.0.outcome() {
            Some(Err(error)) => Err(raise(py, &error)),
            _ => Ok(()),
        }
    }

    /// Cancels the transfer. Nothing is written after this returns. Returns whether this ended the
    /// transfer.
    fn cancel(&self, py: Python<'_>) -> bool {
        if self.0.is_stale() {
            return false;
        }
        let is_cancelled = self.0.cancel();
        py.detach(|| self.0.wait(None));
        // The transfer may have completed nevertheless.
        is_cancelled && self.0.outcome().is_some_and(|outcome| outcome.is_err())
    }

    /// Calls `callback` on a thread of the transfer after the transfer has ended.
    fn when_done(&self, py: Python<'_>, callback: Py<PyAny>) {
        let callback = DropWithGil(Some(callback));
        let call = move || {
            with_python(|py| {
                let Some(callback) = &callback.0 else { return };
                if let Err(error) = callback.call0(py) {
                    error.write_unraisable(py, Some(callback.bind(py)));
                }
            });
        };
        py.detach(|| self.0.when_done(Box::new(call)));
    }
}

thread_local! {
    /// An exception that a signal handler raised during a transfer, until the transfer has ended.
    static INTERRUPT: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Runs signal handlers; called while this thread waits during a transfer.
fn is_interrupted() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    if is_raised {
        INTERRUPT.set(raised);
    }
    is_raised
}

/// Starts several copies at once: tuples of target, whether it is a write, local memory, and
/// offset.
#[pyfunction]
fn submit(
    py: Python<'_>,
    copies: Vec<(Py<PyTarget>, bool, Py<Local>, u64)>,
    timeout: Option<f64>,
) -> PyResult<PyTransfer> {
    let stop = Stop::after(limit_of(timeout)?);
    let operation = |(target, is_write, local, offset): &(Py<PyTarget>, bool, Py<Local>, u64)| {
        let direction = if *is_write { Direction::Write } else { Direction::Read };
        let local = local.get().host_span().map_err(|error| raise(py, &error))?;
        let target = Arc::clone(&target.get().target);
        Ok(Operation::Copy(Copy { target, direction, local, offset: *offset }))
    };
    let operations = copies.iter().map(operation).collect::<PyResult<Vec<_>>>()?;
    let domain = copies.first().map(|(target, ..)| Arc::clone(&target.get().domain));
    // SAFETY: the `Local` objects of the copies keep their memory alive.
    let transfer = unsafe { Transfer::new(operations, stop, Box::new(DropWithGil(Some(copies)))) };
    if let Some(domain) = domain {
        transfer.start(&domain);
    }
    Ok(PyTransfer(transfer))
}

/// Converts seconds to a limit; `None` means unlimited.
pub(crate) fn limit_of(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = |seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            let words = "is not a finite number of seconds from 0 up";
            PyValueError::new_err(format!("timeout {seconds} {words}"))
        })
    };
    seconds.map(limit).transpose()
}
