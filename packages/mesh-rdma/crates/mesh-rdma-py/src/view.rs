//! Python binding of memory of another process that is mapped without a copy.
#![expect(unsafe_code, reason = "implements the buffer protocol")]

use crate::block::fill_view;
use mesh_data::target;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Bytes in the arena of their owner, as a read-only buffer. The owner keeps the memory registered
/// until this object and all views of it are deallocated.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct View(pub(crate) target::View);

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.0.span().len
    }

    /// Whether the registration of these bytes is still valid.
    fn is_valid(&self) -> bool {
        self.0.is_valid()
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
        // SAFETY: the view holds the mapping as long as `slf` lives, and the view holds a reference
        // to it.
        unsafe { fill_view(view, slf.as_any(), slf.get().0.span(), true, flags) }
    }

    /// Does nothing: the reference that the view held is the only resource.
    ///
    /// # Safety
    /// The interpreter calls this function.
    #[expect(clippy::unused_self, reason = "a slot of the protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}
