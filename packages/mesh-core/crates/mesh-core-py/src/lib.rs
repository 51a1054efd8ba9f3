//! The extension module `mesh_core._core`: the only place where Rust meets Python.

use pyo3::prelude::*;

/// Fills the module `mesh_core._core`.
#[pymodule]
fn _core(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
