//! Transfers that run while Python does something else.
#![expect(unsafe_code, reason = "copies memory that Python keeps alive")]

use crate::calls::with_python;
use crate::errors::raise;
use crate::handle::{Kept, PyTarget};
use crate::local::Local;
use mesh_data::stop::interruptible;
use mesh_data::transfer::{Copy, Operation};
use mesh_data::{DataError, Direction, Stop, Transfer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread stays away from Python, which may have a signal for it.
const AWAY: Duration = Duration::from_millis(50);

/// Adds the functions of this file to `mesh_rdma._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(submit, module)?)
}

/// Copies that are under way.
#[pyclass(frozen, name = "Transfer", module = "mesh_rdma._core")]
pub(crate) struct PyTransfer(pub(crate) Arc<Transfer>);

#[pymethods]
impl PyTransfer {
    /// Waits, and copies meanwhile; tells whether all is done. Ctrl-C gives the transfer up.
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.0.is_stale() {
            return Ok(true);
        }
        let until = limit_of(timeout)?.map(|limit| Instant::now() + limit);
        // A piece that waits for another process could last longer than the caller wants to.
        let may_help = until.is_none() || !self.0.may_block();
        loop {
            let away = Instant::now() + AWAY;
            let is_enough = || {
                let now = Instant::now();
                now >= away || until.is_some_and(|until| now >= until)
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let is_done = py.detach(|| {
                if may_help {
                    interruptible(is_interrupted, || self.0.help(is_enough));
                }
                self.0.wait(Some(left.unwrap_or(AWAY).min(AWAY)))
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

    /// Whether it has ended.
    fn is_done(&self) -> bool {
        self.0.is_stale() || self.0.is_done()
    }

    /// Raises what it ended with, if it did not end well.
    fn outcome(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.is_stale() {
            // It goes on in the parent; what it brings is not seen here.
            return Err(raise(py, &DataError::Cancelled));
        }
        self.0.let_go();
        match self.0.outcome() {
            Some(Err(error)) => Err(raise(py, &error)),
            _ => Ok(()),
        }
    }

    /// Gives it up; when this returns nothing is written any more. Tells whether that ended it.
    fn cancel(&self, py: Python<'_>) -> bool {
        if self.0.is_stale() {
            return false;
        }
        let is_given_up = self.0.cancel();
        py.detach(|| self.0.wait(None));
        // The last bytes may have been copied all the same.
        is_given_up && self.0.outcome().is_some_and(|outcome| outcome.is_err())
    }

    /// Calls back once it has ended, from a thread of the transfer's.
    fn when_done(&self, py: Python<'_>, callback: Py<PyAny>) {
        let callback = Kept(Some(callback));
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
    /// What a signal's handler has raised inside of a transfer, until the transfer has ended.
    static INTERRUPT: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Asked while this thread waits inside of a transfer: runs the handlers of signals.
fn is_interrupted() -> bool {
    let raised = Python::try_attach(|py| py.check_signals().err()).flatten();
    let is_raised = raised.is_some();
    if is_raised {
        INTERRUPT.set(raised);
    }
    is_raised
}

/// Begins several copies at once: tuples of target, whether it is a write, local, and offset.
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
    // SAFETY: the locals of the copies keep their memory alive.
    let transfer = unsafe { Transfer::new(operations, stop, Box::new(Kept(Some(copies)))) };
    if let Some(domain) = domain {
        transfer.start(&domain);
    }
    Ok(PyTransfer(transfer))
}

/// Seconds as a limit; none is no limit.
pub(crate) fn limit_of(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = |seconds| {
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            let words = "is not a finite number of seconds from 0 up";
            PyValueError::new_err(format!("timeout {seconds} {words}"))
        })
    };
    seconds.map(limit).transpose()
}
