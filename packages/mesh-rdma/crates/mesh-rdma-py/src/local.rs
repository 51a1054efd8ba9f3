//! Python binding of memory of this process.
#![expect(unsafe_code, reason = "uses the buffer protocol")]

use crate::calls::with_python;
use mesh_data::pull::Pin;
use mesh_data::{DataError, Memory, Span};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// A contiguous range of this process's memory that is kept alive.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct Local {
    pub(crate) span: Span,
    pub(crate) is_writable: bool,
    /// The device that has the memory; the CPU must not access the address.
    pub(crate) device: Option<u32>,
    _owner: Owner,
}

/// The resource that keeps the memory valid.
enum Owner {
    /// A view that Python exported; boxed, because it must not move.
    Buffer(Box<ffi::Py_buffer>),
    /// The object that owns the memory, or the range that this one is a part of.
    Object { _object: Py<PyAny> },
    /// A registration that is pinned for writing.
    Pin { _pin: Pin },
}

// SAFETY: the view is released with the GIL held, and is not accessed otherwise.
unsafe impl Send for Owner {}
// SAFETY: the same as for `Send`.
unsafe impl Sync for Owner {}

impl Local {
    /// The memory of a pinned registration.
    pub(crate) fn pinned(pin: Pin) -> Self {
        let Memory { span, is_writable, device } = pin.memory;
        Self { span, is_writable, device, _owner: Owner::Pin { _pin: pin } }
    }

    /// The description of the memory for a registration.
    pub(crate) fn memory(&self) -> Memory {
        let Self { span, is_writable, device, .. } = *self;
        Memory { span, is_writable, device }
    }

    /// The range, for copies by the CPU. Fails for device memory.
    pub(crate) fn host_span(&self) -> Result<Span, DataError> {
        if self.device.is_some() { Err(DataError::OnDevice) } else { Ok(self.span) }
    }
}

#[pymethods]
impl Local {
    /// Acquires the buffer of any object with the buffer protocol whose bytes are contiguous, in
    /// any order of dimensions. The range is writable if the buffer is.
    #[new]
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        let get = |view: &mut ffi::Py_buffer, flags| {
            // SAFETY: the view is exclusively ours to fill in, and the object is alive.
            let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view, flags) };
            if got == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
        };
        let wanted = ffi::PyBUF_ANY_CONTIGUOUS;
        if get(&mut view, wanted | ffi::PyBUF_WRITABLE).is_err() {
            // The object is read-only or not contiguous: the second attempt distinguishes the two.
            get(&mut view, wanted).map_err(|error| {
                let words = "the memory is not contiguous: copy it first";
                let is_buffer = error.is_instance_of::<PyBufferError>(py)
                    || error.is_instance_of::<PyValueError>(py);
                if is_buffer { PyValueError::new_err(words) } else { error }
            })?;
        }
        let len = usize::try_from(view.len).unwrap_or(0);
        let span = Span { start: view.buf as usize, len };
        let is_writable = view.readonly == 0;
        Ok(Self { span, is_writable, device: None, _owner: Owner::Buffer(view) })
    }

    /// Wraps memory at an address. `memory_owner` is the object that owns it; `device` is the
    /// number of the device that has it.
    #[staticmethod]
    #[pyo3(signature = (address, nbytes, is_writable, memory_owner, device=None))]
    fn at(
        address: usize,
        nbytes: usize,
        is_writable: bool,
        memory_owner: Py<PyAny>,
        device: Option<u32>,
    ) -> Self {
        let span = Span { start: address, len: nbytes };
        Self { span, is_writable, device, _owner: Owner::Object { _object: memory_owner } }
    }

    /// A part of the same memory.
    fn part(slf: &Bound<'_, Self>, offset: usize, nbytes: usize) -> PyResult<Self> {
        let whole = slf.get();
        let span = whole.span.part(offset, nbytes).ok_or_else(|| {
            let len = whole.span.len;
            let end = offset.saturating_add(nbytes);
            PyValueError::new_err(format!("bytes {offset} to {end} are outside of {len}"))
        })?;
        let _owner = Owner::Object { _object: slf.clone().into_any().unbind() };
        Ok(Self { span, is_writable: whole.is_writable, device: whole.device, _owner })
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.span.len
    }

    /// The address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.span.start
    }

    /// The number of the device that has the memory, or `None`.
    #[getter]
    fn device(&self) -> Option<u32> {
        self.device
    }

    /// Whether the memory is writable.
    #[getter]
    fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Self::Buffer(view) = self {
            // After the interpreter has shut down, the memory is freed with the process.
            with_python(|_| {
                // SAFETY: Python filled in the view, and it is released once.
                unsafe { ffi::PyBuffer_Release(&raw mut **view) }
            });
        }
    }
}
