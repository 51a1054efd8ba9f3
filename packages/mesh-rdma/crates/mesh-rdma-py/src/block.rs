//! Python binding of arena memory, with the buffer protocol.
#![expect(unsafe_code, reason = "implements the buffer protocol")]

use crate::errors::raise;
use mesh_data::{Span, arena, process};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Zero-initialized shared memory of this process: a writable buffer of bytes.
///
/// The memory is freed when neither this object nor a view of it exists.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct Block(arena::Block);

#[pymethods]
impl Block {
    /// Allocates a block in the arena.
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

    /// Exports the bytes. The view holds a reference to this object as long as it exists.
    ///
    /// # Safety
    /// The interpreter calls this function with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: the block stays allocated as long as `slf` lives, and the view holds a reference
        // to it.
        unsafe { fill_view(view, slf.as_any(), slf.get().0.span, false, flags) }
    }

    /// Does nothing: the reference that the view held is the only resource.
    ///
    /// # Safety
    /// The interpreter calls this function.
    #[expect(clippy::unused_self, reason = "a slot of the protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// Fills in a view of `owner`'s bytes.
///
/// # Safety
/// `view` is a view that the interpreter requested; the bytes stay valid as long as `owner` exists.
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
    // SAFETY: the contract of this function is the same, and its caller upholds it.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, len, is_read_only, flags) };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
