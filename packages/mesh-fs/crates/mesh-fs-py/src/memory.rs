//! Memory that Python lends for a call.
#![expect(unsafe_code, reason = "uses the buffer protocol")]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Contiguous bytes of a Python object, for as long as this lives.
pub(crate) struct Lent(PyBuffer<u8>);

impl Lent {
    /// Borrows an object with the buffer protocol, such as a `memoryview`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the memory is not contiguous"));
        }
        Ok(Self(buffer))
    }

    /// Gives the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer keeps them where they are; the one caller, mesh_fs, gives memory that
        // it has itself allocated and that nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// Gives the bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> PyResult<&mut [u8]> {
        if self.0.readonly() {
            return Err(PyValueError::new_err("the memory is read-only"));
        }
        // SAFETY: as above; and nobody reads them before the call is over.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) })
    }
}
