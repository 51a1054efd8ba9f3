//! The extension module `mesh_rdma._core`: Python bindings of the data path.

use pyo3::prelude::*;

mod block;
mod calls;
mod copy_lease;
mod errors;
mod handle;
mod local;
mod pull;
mod region;
mod transfer;
mod view;

/// Registers the classes and functions of the module `mesh_rdma._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<block::Block>()?;
    module.add_class::<copy_lease::PyCopyLease>()?;
    module.add_class::<local::Local>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<handle::PyTarget>()?;
    module.add_class::<view::View>()?;
    module.add_class::<transfer::PyTransfer>()?;
    calls::register(module)?;
    handle::register(module)?;
    pull::register(module)?;
    region::register(module)?;
    transfer::register(module)
}
