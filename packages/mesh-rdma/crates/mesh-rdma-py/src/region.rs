//! Access to registrations of this process by slot and key.

use crate::errors::raise;
use crate::handle::{DropWithGil, domain};
use crate::local::Local;
use crate::transfer::limit_of;
use mesh_data::Stop;
use mesh_data::pull::Pin;
use mesh_data::registry::MemoryOwner;
use pyo3::prelude::*;

/// Registers the functions of this module in `mesh_rdma._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(region_of, module)?)?;
    module.add_function(wrap_pyfunction!(pin_region, module)?)?;
    module.add_function(wrap_pyfunction!(attach_object, module)?)?;
    module.add_function(wrap_pyfunction!(reclaim, module)?)
}

/// The memory of a registration of this process with its owner; `None` if it is not valid.
#[pyfunction]
fn region_of(py: Python<'_>, slot: u32, key: u64) -> PyResult<Option<Py<Local>>> {
    let local = |memory_owner: &MemoryOwner| {
        let owner = memory_owner.downcast_ref::<DropWithGil<Py<Local>>>()?;
        owner.0.as_ref().map(|local| local.clone_ref(py))
    };
    Ok(domain(py)?.with_memory_owner(slot, key, local).flatten())
}

/// Pins the memory of a registration of this process for a copy: a release waits while the pin
/// exists.
#[pyfunction]
fn pin_region(py: Python<'_>, slot: u32, key: u64, is_write: bool) -> PyResult<Local> {
    let pin = Pin::of(&domain(py)?, slot, key, is_write).map_err(|error| raise(py, &error))?;
    Ok(Local::pinned(pin))
}

/// Attaches an object to a registration. It is dropped before the registered memory is freed.
#[pyfunction]
fn attach_object(py: Python<'_>, slot: u32, key: u64, object: Py<PyAny>) -> PyResult<bool> {
    Ok(domain(py)?.attach_object(slot, key, Box::new(DropWithGil(Some(object)))))
}

/// Releases a registration of this process if nothing else uses it. Returns whether it was
/// released.
#[pyfunction]
fn reclaim(py: Python<'_>, slot: u32, key: u64, timeout: Option<f64>) -> PyResult<bool> {
    let (domain, stop) = (domain(py)?, Stop::after(limit_of(timeout)?));
    py.detach(|| domain.reclaim(slot, key, &stop)).map_err(|error| raise(py, &error))
}
