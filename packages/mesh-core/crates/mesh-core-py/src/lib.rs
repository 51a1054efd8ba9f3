//! The extension module `mesh_core._core`: the only place where Rust meets Python.

mod region;

use pyo3::prelude::*;

/// Fills the module `mesh_core._core`.
#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    region::register(module)?;
    Ok(())
}
