//! Memory of Python objects that is borrowed for a call.
#![expect(unsafe_code, reason = "uses the buffer protocol")]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Contiguous bytes of a Python object, borrowed during the lifetime of this value.
pub(crate) struct SharedBuffer(PyBuffer<u8>);

impl SharedBuffer {
    /// Borrows the memory of an object with the buffer protocol, such as a `memoryview`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the memory is not contiguous"));
        }
        Ok(Self(buffer))
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer keeps the bytes at their address. The only caller, mesh_fs, passes
        // memory that it has allocated itself and that no one writes during the call.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// Returns the bytes for writing.
    pub(crate) fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        if self.0.readonly() {
            return Err(PyValueError::new_err("the memory is read-only"));
        }
        // SAFETY: as above, and no one reads the bytes before the call returns.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) })
    }
}
