//! Received payloads as Python buffers, without a copy.
#![expect(unsafe_code, reason = "implements and uses the buffer protocol")]

use mesh_runtime::segment::{
    self, CacheLimits, FillError, Mapping, OpenError, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::frame::Part;
use mesh_wire::id::ProcId;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// From this length on, dropping a buffer may take long enough to release the GIL.
const SLOW_DROP_LEN: usize = 1 << 20;

/// Registers the classes and functions of this module in `mesh_core._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedBuffer>()?;
    module.add_class::<FrozenBuffer>()?;
    module.add_class::<SharedSender>()?;
    module.add_class::<SharedReceiver>()?;
    module.add_function(wrap_pyfunction!(copy_fresh, module)?)
}

/// Bytes of a received message that stay in shared memory of the sender until they are written.
///
/// A writable buffer: `memoryview(shared)`, `numpy.frombuffer(shared, ...)` and
/// `torch.frombuffer(shared, ...)` use the bytes in place and keep them alive. Writes are private
/// to this process.
#[pyclass(frozen, module = "mesh_core._core")]
pub(crate) struct SharedBuffer {
    /// `None` only while the buffer is being dropped.
    bytes: Option<Mapping>,
}

impl SharedBuffer {
    /// Wraps one part of a message.
    pub(crate) fn new(bytes: Mapping) -> Self {
        Self { bytes: Some(bytes) }
    }

    fn bytes(&self) -> &Mapping {
        self.bytes.as_ref().expect("the bytes are taken only when the buffer is dropped")
    }
}

#[pymethods]
impl SharedBuffer {
    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    /// Returns a read-only buffer of the same bytes. If a message is exported only in this way,
    /// dropping it needs no search for written pages.
    fn frozen(slf: Py<Self>) -> FrozenBuffer {
        FrozenBuffer(slf)
    }

    fn __repr__(&self) -> String {
        format!("<SharedBuffer of {} bytes>", self.bytes().len())
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
        let bytes = slf.get().bytes();
        let start = bytes.as_mut_ptr();
        // SAFETY: the bytes stay mapped as long as `slf` lives, and the view holds a reference to
        // it. Rust no longer makes a slice of them, so only Python code decides about writes.
        unsafe { fill_view(view, slf.as_any(), (start, bytes.len()), false, flags) }
    }

    /// Does nothing: the reference that the view held is the only resource.
    ///
    /// # Safety
    /// The interpreter calls this function.
    #[expect(clippy::unused_self, reason = "a slot of the protocol")]
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

impl Drop for SharedBuffer {
    /// Unmaps the bytes. The search for written pages takes about 10 us per megabyte.
    fn drop(&mut self) {
        let bytes = self.bytes.take();
        if bytes.as_ref().is_some_and(|bytes| bytes.len() >= SLOW_DROP_LEN) {
            Python::try_attach(|py| py.detach(|| drop(bytes)));
        }
    }
}

/// Read-only bytes of a received message, returned by `SharedBuffer.frozen()`.
#[pyclass(frozen, module = "mesh_core._core")]
pub(crate) struct FrozenBuffer(Py<SharedBuffer>);

#[pymethods]
impl FrozenBuffer {
    /// Exports the bytes as read-only.
    ///
    /// # Safety
    /// The interpreter calls this function with a view to fill in.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.get().bytes();
        let start = bytes.as_ptr().cast_mut();
        // SAFETY: the bytes stay mapped as long as `slf` lives, and the view holds a reference to
        // it.
        unsafe { fill_view(view, slf.as_any(), (start, bytes.len()), true, flags) }
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
unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    (start, len): (*mut u8, usize),
    is_read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    let len = ffi::Py_ssize_t::try_from(len)
        .map_err(|_| PyBufferError::new_err("the bytes are too many for a view"))?;
    let (start, owner_ptr, is_read_only) =
        (start.cast(), owner.as_ptr(), c_int::from(is_read_only));
    // SAFETY: the contract of this function is the same, and its caller upholds it.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner_ptr, start, len, is_read_only, flags) };
    if result == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// The sending half of shared segments, without a connection to the receiver; for tests of buffers.
#[pyclass(frozen, module = "mesh_core._core")]
struct SharedSender {
    pool: SegmentPool,
}

/// The Python representation of a part: segment, generation, offset, length.
type PartTuple = (u32, u32, u64, u64);

#[pymethods]
impl SharedSender {
    #[new]
    fn new() -> Self {
        Self { pool: SegmentPool::new(OWNER, SegmentLimits::default()) }
    }

    /// Copies buffers for the readers in `slots`. Returns the descriptor of the segment and the
    /// parts.
    fn fill(
        &self,
        py: Python<'_>,
        buffers: Vec<PyBuffer<u8>>,
        slots: Vec<u32>,
    ) -> PyResult<(i32, Vec<PartTuple>)> {
        let slices: Vec<_> = buffers.iter().map(contiguous).collect::<PyResult<_>>()?;
        let readers: Vec<_> = slots.into_iter().map(|slot| ProcId::new(0, slot)).collect();
        let filled = py.detach(|| self.pool.fill(&slices, &readers));
        let filled = filled.map_err(|error: FillError| io::Error::from(error))?;
        let tuple = |part: &Part| (part.segment, part.generation, part.offset, part.len);
        // The pool keeps its segments, and therefore the descriptor, open.
        Ok((filled.fd.as_raw_fd(), filled.parts.iter().map(tuple).collect()))
    }

    /// Records that the reader in `slot` has released its reference.
    fn release(&self, segment: u32, generation: u32, slot: u32) {
        self.pool.release(segment, generation, ProcId::new(0, slot));
    }

    /// Bytes that readers still reference.
    fn bytes_in_use(&self) -> usize {
        self.pool.stats().bytes_in_use
    }
}

/// The receiving half of shared segments, also for tests.
#[pyclass(frozen, module = "mesh_core._core")]
struct SharedReceiver {
    cache: SegmentCache,
}

/// The sender of the messages of a `SharedReceiver`.
const OWNER: ProcId = ProcId::new(0, 1);

#[pymethods]
impl SharedReceiver {
    #[new]
    fn new() -> Self {
        Self { cache: SegmentCache::new(CacheLimits::default()) }
    }

    /// Registers the descriptor of a segment. The receiver keeps a duplicate of it.
    fn learn(&self, segment: u32, fd: i32) -> PyResult<()> {
        // SAFETY: the caller keeps the descriptor open during the call, which only duplicates it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
        self.cache.learn(OWNER, segment, fd).map_err(|error: OpenError| io::Error::from(error))?;
        Ok(())
    }

    /// Maps the parts of a message; `on_drop` is called when the last of the buffers is dropped.
    fn open(&self, parts: Vec<PartTuple>, on_drop: Py<PyAny>) -> PyResult<Vec<SharedBuffer>> {
        let part = |(segment, generation, offset, len)| {
            let owner = OWNER;
            Part { owner, segment, generation, offset, len }
        };
        let parts: Vec<_> = parts.into_iter().map(part).collect();
        let call = move || {
            Python::try_attach(|py| {
                if let Err(error) = on_drop.call0(py) {
                    error.write_unraisable(py, None);
                }
            });
        };
        let views = self.cache.open(&parts, Box::new(call)).map_err(io::Error::from)?;
        Ok(views.into_iter().map(SharedBuffer::new).collect())
    }

    /// Makes the pages of open messages private to this process. Call it before a fork.
    fn prepare_fork(&self) -> PyResult<()> {
        Ok(self.cache.prepare_fork()?)
    }
}

/// Returns the bytes of a buffer. If Python code writes to the buffer while it is sent, the
/// receiver may get a mixture of old and new bytes.
pub(crate) fn contiguous(buffer: &PyBuffer<u8>) -> PyResult<&[u8]> {
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer has gaps: copy it first"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(&[]);
    }
    // SAFETY: the buffer is contiguous and not empty, and it stays exported while it is borrowed.
    Ok(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) })
}

/// Copies all of `source` to the start of `target`, whose memory is new and has no pages yet.
///
/// The GIL is released during the copy.
///
/// # Errors
/// Raises `BufferError` if a buffer has gaps, or if the target is read-only or too short.
#[pyfunction]
fn copy_fresh(py: Python<'_>, target: PyBuffer<u8>, source: PyBuffer<u8>) -> PyResult<()> {
    let from = contiguous(&source)?;
    if target.readonly() || !target.is_c_contiguous() || target.len_bytes() < from.len() {
        return Err(PyBufferError::new_err("the target is read-only, has gaps or is too short"));
    }
    if from.is_empty() {
        return Ok(());
    }
    // SAFETY: the target is contiguous and not empty, it stays exported, and no other code uses it
    // yet.
    let to = unsafe { std::slice::from_raw_parts_mut(target.buf_ptr().cast(), target.len_bytes()) };
    py.detach(|| segment::copy_fresh(from, to));
    Ok(())
}
