//! Copies to buffers of this process that another component requested.
#![expect(unsafe_code, reason = "begins copies")]

use crate::errors::raise;
use crate::handle::{DropWithGil, Handle, PyTarget};
use crate::transfer::{PyTransfer, limit_of};
use mesh_data::grid::{Dim, Grid};
use mesh_data::pull::Pull;
use mesh_data::transfer::Operation;
use mesh_data::{DataError, Stop, Transfer};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Registers the function of this module in `mesh_rdma._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(pull, module)?)
}

/// A strided copy of rows: the source and the offset in it, the destination buffer of this process
/// and the offset in it, the length of a row in bytes, and for each dimension, outermost first, the
/// count, the source stride and the destination stride.
type Rows = (Py<PyTarget>, u64, Py<Handle>, u64, u64, Vec<(u64, u64, u64)>);

/// Starts several strided copies at once, each to a buffer of this process. `memory_owner` is kept
/// alive until they end.
#[pyfunction]
fn pull(
    py: Python<'_>,
    copies: Vec<Rows>,
    timeout: Option<f64>,
    memory_owner: Py<PyAny>,
) -> PyResult<PyTransfer> {
    let stop = Stop::after(limit_of(timeout)?);
    let operation = |(source, from, ours, to, row_len, dims): &Rows| {
        let dims: Vec<_> = dims
            .iter()
            .map(|&(count, from_stride, to_stride)| Dim { count, from_stride, to_stride })
            .collect();
        let grid = Grid::new(*row_len, &dims)
            .ok_or_else(|| PyValueError::new_err("rows of more than 8 dimensions, or too long"))?;
        let (ours, source) = (ours.get(), Arc::clone(&source.get().target));
        let place = ours.place()?;
        if ours.is_on_device() {
            return Err(raise(py, &DataError::OnDevice));
        }
        let domain = Arc::clone(&ours.domain);
        Ok(Operation::Pull(Pull::new(source, *from, domain, place, *to, grid)))
    };
    let operations = copies.iter().map(operation).collect::<PyResult<Vec<_>>>()?;
    let domain = copies.first().map(|(_, _, ours, ..)| Arc::clone(&ours.get().domain));
    // SAFETY: a pull stores no address; it looks up the registration each time.
    let transfer =
        unsafe { Transfer::new(operations, stop, Box::new(DropWithGil(Some(memory_owner)))) };
    if let Some(domain) = domain {
        py.detach(|| transfer.start(&domain));
    }
    Ok(PyTransfer(transfer))
}
