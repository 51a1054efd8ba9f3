//! Conversion of errors to the exceptions of `mesh_fs._errors`.

use std::fmt::Display;

use pyo3::prelude::*;

/// Creates an exception of the class with this name.
pub(crate) fn raise(py: Python<'_>, class: &str, error: &impl Display) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let class = py.import("mesh_fs._errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call1((error.to_string(),))?))
    };
    make().unwrap_or_else(|error| error)
}
