//! Memory of another process in view here, without a copy.
#![expect(unsafe_code, reason = "implements the buffer protocol")]

use crate::block::fill_view;
use mesh_data::way;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Bytes that lie in the arena of their owner: a read-only buffer. The owner keeps them as they are
/// registered until this and all views of it are gone.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct Loan(pub(crate) way::Loan);

#[pymethods]
impl Loan {
    fn __len__(&self) -> usize {
        self.0.span().len
    }

    /// Whether the owner still has these bytes registered.
    fn is_good(&self) -> bool {
        self.0.is_good()
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
        // SAFETY: the loan holds the mapping for as long as `slf` lives, which the view holds.
        unsafe { fill_view(view, slf.as_any(), slf.get().0.span(), true, flags) }
    }

    /// Nothing to do: the reference that the view held is all there was.
    ///
    /// # Safety
    /// Called by Python.
    #[expect(clippy::unused_self, reason = "a slot of the protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}
