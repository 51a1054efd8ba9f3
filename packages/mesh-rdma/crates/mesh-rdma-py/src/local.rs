//! Memory of this process, as Python has it.
#![expect(unsafe_code, reason = "uses the buffer protocol")]

use crate::calls::with_python;
use mesh_data::pull::Pin;
use mesh_data::{DataError, Memory, Span};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

/// A contiguous range of this process's memory, kept alive.
#[pyclass(frozen, module = "mesh_rdma._core")]
pub(crate) struct Local {
    pub(crate) span: Span,
    pub(crate) is_writable: bool,
    /// The device whose memory it is: the processor must not touch the address.
    pub(crate) device: Option<u32>,
    _keeper: Keeper,
}

/// What keeps the memory where it is.
enum Keeper {
    /// A view that Python has lent; boxed, because it must not move.
    View(Box<ffi::Py_buffer>),
    /// An object that owns it, or the one that another range was cut from.
    Object { _owner: Py<PyAny> },
    /// A registration that is written.
    Pin { _pin: Pin },
}

// SAFETY: the view is released with the GIL held, and not looked at otherwise.
unsafe impl Send for Keeper {}
// SAFETY: as above.
unsafe impl Sync for Keeper {}

impl Local {
    /// The memory of a registration.
    pub(crate) fn pinned(pin: Pin) -> Self {
        let Memory { span, is_writable, device } = pin.memory;
        Self { span, is_writable, device, _keeper: Keeper::Pin { _pin: pin } }
    }

    /// As what is offered to others.
    pub(crate) fn memory(&self) -> Memory {
        let Self { span, is_writable, device, .. } = *self;
        Memory { span, is_writable, device }
    }

    /// Where it is, for what the processor copies by.
    pub(crate) fn host_span(&self) -> Result<Span, DataError> {
        if self.device.is_some() { Err(DataError::OnDevice) } else { Ok(self.span) }
    }
}

#[pymethods]
impl Local {
    /// Takes anything with the buffer protocol whose bytes lie side by side, in any order of
    /// dimensions. Whether it may be written is as the object says.
    #[new]
    fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        let get = |view: &mut ffi::Py_buffer, flags| {
            // SAFETY: the view is ours to fill in, and the object is alive.
            let got = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view, flags) };
            if got == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
        };
        let wanted = ffi::PyBUF_ANY_CONTIGUOUS;
        if get(&mut view, wanted | ffi::PyBUF_WRITABLE).is_err() {
            // Read-only, or not contiguous: the second try says which.
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
        Ok(Self { span, is_writable, device: None, _keeper: Keeper::View(view) })
    }

    /// Takes memory by its address; `keeper` is what owns it, `device` the number of that whose
    /// memory it is.
    #[staticmethod]
    #[pyo3(signature = (address, nbytes, is_writable, keeper, device=None))]
    fn at(
        address: usize,
        nbytes: usize,
        is_writable: bool,
        keeper: Py<PyAny>,
        device: Option<u32>,
    ) -> Self {
        let span = Span { start: address, len: nbytes };
        Self { span, is_writable, device, _keeper: Keeper::Object { _owner: keeper } }
    }

    /// A part of the same memory.
    fn part(slf: &Bound<'_, Self>, offset: usize, nbytes: usize) -> PyResult<Self> {
        let whole = slf.get();
        let span = whole.span.part(offset, nbytes).ok_or_else(|| {
            let len = whole.span.len;
            let end = offset.saturating_add(nbytes);
            PyValueError::new_err(format!("bytes {offset} to {end} of {len}: stay inside"))
        })?;
        let _keeper = Keeper::Object { _owner: slf.clone().into_any().unbind() };
        Ok(Self { span, is_writable: whole.is_writable, device: whole.device, _keeper })
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.span.len
    }

    /// Where the first one is.
    #[getter]
    fn address(&self) -> usize {
        self.span.start
    }

    /// The number of the device whose memory it is, or none.
    #[getter]
    fn device(&self) -> Option<u32> {
        self.device
    }

    /// Whether it may be written.
    #[getter]
    fn is_writable(&self) -> bool {
        self.is_writable
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Self::View(view) = self {
            // Python is gone at the very end of a process: the memory goes with it.
            with_python(|_| {
                // SAFETY: it was filled in by Python, and is released once.
                unsafe { ffi::PyBuffer_Release(&raw mut **view) }
            });
        }
    }
}
