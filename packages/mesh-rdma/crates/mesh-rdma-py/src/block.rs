//! Memory of the arena, as a Python buffer.
#![expect(unsafe_code, reason = "implements the buffer protocol")]

use crate::errors::raise;
use mesh_data::{Span, arena, process};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Shared memory of this process, zero at first: a writable buffer of bytes.
///
/// It is free again when neither this nor a view of it is used any more.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct Block(arena::Block);

#[pymethods]
impl Block {
    /// Takes a block of the arena.
    #[new]
    fn new(py: Python<'_>, nbytes: usize) -> PyResult<Self> {
        let taken = py.detach(|| process::domain()?.allocate(nbytes));
        taken.map(Self).map_err(|error| raise(py, &error))
    }

    fn __len__(&self) -> usize {
        self.0.span.len
    }

    fn __repr__(&self) -> String {
        format!("<Block of {} bytes>", self.0.span.len)
    }

    /// Lends the bytes; the view holds a reference to this object for as long as it lives.
    ///
    /// # Safety
    /// Called by Python, with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the block is taken for as long as `slf` lives, which the view holds.
        unsafe { fill_view(view, slf.as_any(), slf.get().0.span, false, flags) }
    }

    /// Nothing to do: the reference that the view held is all there was.
    ///
    /// # Safety
    /// Called by Python.
    #[expect(clippy::unused_self, reason = "a slot of the protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// Fills in a view of `owner`'s bytes.
///
/// # Safety
/// `view` is one that Python wants filled in; the bytes are there for as long as `owner` is.
pub(crate) unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    bytes: Span,
    is_read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(bytes.len)
        .map_err(|_| PyBufferError::new_err("the bytes are too many for a view"))?;
    let start = bytes.start as *mut std::ffi::c_void;
    let is_read_only = c_int::from(is_read_only);
    // SAFETY: passed on to the caller.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, is_read_only, flags) };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
