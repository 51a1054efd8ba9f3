//! Python bindings of buffer handles: to buffers of this process and of others.
#![expect(unsafe_code, reason = "copies memory that Python keeps alive")]

use crate::calls::{self, with_python};
use crate::copy_lease::PyCopyLease;
use crate::errors::raise;
use crate::local::Local;
use crate::transfer::{PyTransfer, limit_of};
use crate::view::View;
use mesh_data::frame::Verb;
use mesh_data::process::generation;
use mesh_data::pull::Pin;
use mesh_data::target::ON_DEVICE as ON_DEVICE_WHY;
use mesh_data::transfer::{Copy, Operation};
use mesh_data::{
    CopyLease, DataError, Direction, Domain, Lease, Link, Listen, Memory, Options, PeerDescriptor,
    Refusal, Remote, Stop, Target, Transfer, Transport, process,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// The maximum length of a copy that runs synchronously on the calling thread, if no other process
/// has to participate.
const INLINE_LEN: usize = 256 << 10;
/// The maximum length of a copy that keeps the GIL.
const QUICK_LEN: usize = 16 << 10;
/// The length of an encoded handle before the peer descriptor: slot, key, length, address, segment,
/// offset in the segment, and flags.
const REMOTE_LEN: usize = 4 + 8 + 8 + 8 + 4 + 8 + 1;
const WRITABLE: u8 = 1;
const IN_ARENA: u8 = 2;
const ON_DEVICE: u8 = 4;

/// A Python callable that returns whether the job has credentials, called for each handle of a
/// local buffer that is sent.
static CREDENTIALS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The names of transports that are not used, with the reasons.
type Refusals = Vec<(&'static str, String)>;

/// Registers the functions of this module in `mesh_rdma._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(reset_after_fork, module)?)?;
    module.add_function(wrap_pyfunction!(counts, module)?)?;
    module.add_function(wrap_pyfunction!(set_transit_timeout, module)?)?;
    module.add_function(wrap_pyfunction!(machine, module)?)?;
    module.add_function(wrap_pyfunction!(set_request_handler, module)?)?;
    module.add_function(wrap_pyfunction!(set_credentials_check, module)?)?;
    module.add_function(wrap_pyfunction!(refusals, module)?)?;
    module.add_function(wrap_pyfunction!(configure, module)?)
}

/// A handle of a registration, which counts as in use until the handle is dropped.
#[pyclass(frozen, weakref, module = "mesh_rdma._core")]
pub(crate) struct Handle {
    pub(crate) domain: Arc<Domain>,
    descriptor: Arc<PeerDescriptor>,
    remote: Remote,
    is_writable: bool,
    held_lease: HeldLease,
    /// The id of the process that created the handle, to detect a forked child.
    generation: usize,
}

/// The lease that ends with a handle.
enum HeldLease {
    /// A lease on a buffer of this process.
    Local,
    /// A lease on a buffer of another process.
    Remote { _lease: Lease },
    /// None: the process that lent the handle holds the lease.
    Borrowed,
}

#[pymethods]
impl Handle {
    /// Registers memory of this process.
    #[new]
    fn new(py: Python<'_>, local: Py<Local>) -> PyResult<Self> {
        let domain = domain(py)?;
        let memory = local.get().memory();
        let Memory { span, is_writable, device } = memory;
        let registered = domain.register(memory, Box::new(DropWithGil(Some(local))));
        let (slot, key) = registered.map_err(|error| raise(py, &error))?;
        let arena = domain.arena().locate(span).map(|(segment, at)| (segment, at as u64));
        let address = span.start as u64;
        let (len, is_on_device) = (span.len as u64, device.is_some());
        let remote = Remote { slot, key, len, address, arena, is_on_device };
        let descriptor = Arc::new(domain.descriptor().clone());
        Ok(Self {
            domain,
            descriptor,
            remote,
            is_writable,
            held_lease: HeldLease::Local,
            generation: generation(),
        })
    }

    /// A handle of another registration of the same owner, whose memory begins `offset` bytes after
    /// the start of this one.
    fn sibling(
        &self,
        py: Python<'_>,
        slot: u32,
        key: u64,
        offset: u64,
        nbytes: u64,
    ) -> PyResult<Self> {
        let arena = self.remote.arena.map(|(segment, at)| (segment, at.saturating_add(offset)));
        let address = self.remote.address.saturating_add(offset);
        let is_on_device = self.remote.is_on_device;
        let remote = Remote { slot, key, len: nbytes, address, arena, is_on_device };
        let (domain, descriptor) = (Arc::clone(&self.domain), Arc::clone(&self.descriptor));
        let held_lease = if self.is_ours() {
            if !domain.lease(slot, key) {
                return Err(raise(py, &DataError::Released));
            }
            HeldLease::Local
        } else {
            let lease = py.detach(|| Lease::confirmed(&domain, &descriptor, slot, key));
            HeldLease::Remote { _lease: lease.map_err(|error| raise(py, &error))? }
        };
        Ok(Self {
            domain,
            descriptor,
            remote,
            is_writable: false,
            held_lease,
            generation: generation(),
        })
    }

    /// Decodes the result of `encode`, from this or another process.
    #[staticmethod]
    fn decode(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let borrowed = Self::decode_borrowed(py, bytes)?;
        let Remote { slot, key, .. } = borrowed.remote;
        let held_lease = if borrowed.is_ours() {
            // If the buffer has been released, an error is raised when it is used.
            borrowed.domain.lease(slot, key);
            HeldLease::Local
        } else {
            HeldLease::Remote {
                _lease: Lease::begin(&borrowed.domain, &borrowed.descriptor, slot, key),
            }
        };
        let domain = Arc::clone(&borrowed.domain);
        let descriptor = Arc::clone(&borrowed.descriptor);
        let Self { remote, is_writable, generation, .. } = borrowed;
        Ok(Self { domain, descriptor, remote, is_writable, held_lease, generation })
    }

    /// Decodes the result of `encode_borrowed`. The process that encoded the handle holds the
    /// lease; this process has none.
    #[staticmethod]
    fn decode_borrowed(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let domain = domain(py)?;
        let (descriptor, remote, is_writable) = decode(bytes)
            .ok_or_else(|| PyValueError::new_err("these bytes are no handle of a buffer"))?;
        let (descriptor, generation) = (Arc::new(descriptor), generation());
        Ok(Self {
            domain,
            descriptor,
            remote,
            is_writable,
            held_lease: HeldLease::Borrowed,
            generation,
        })
    }

    /// Encodes the handle like `encode`; the receiving process uses it only while this process
    /// holds its lease.
    fn encode_borrowed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let descriptor = self.public_descriptor(py)?;
        Ok(PyBytes::new(py, &encode(&descriptor, &self.remote, self.is_writable)))
    }

    /// Encodes the handle for another process. Any process that has the bytes may use the buffer.
    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let descriptor = self.public_descriptor(py)?;
        if self.is_ours() {
            self.domain.mark_in_transit(self.remote.slot, self.remote.key);
        }
        Ok(PyBytes::new(py, &encode(&descriptor, &self.remote, self.is_writable)))
    }

    /// Selects a transport to the buffer: the one with this name, or the best. Also returns the
    /// name of each transport that is not used, with the reason.
    #[pyo3(signature = (name=None))]
    fn select_target(
        slf: &Bound<'_, Self>,
        name: Option<&str>,
    ) -> PyResult<(Option<PyTarget>, Refusals)> {
        let (py, this) = (slf.py(), slf.get());
        let found = py.detach(|| this.find(name));
        let (target, refused) = found.map_err(|error| raise(py, &error))?;
        let domain = Arc::clone(&this.domain);
        let handle = slf.clone().unbind();
        Ok((target.map(|target| PyTarget { domain, target: Arc::new(target), handle }), refused))
    }

    /// Raises if the owner has exited.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_ours() {
            return Ok(());
        }
        let found = py.detach(|| Link::get_or_connect(&self.domain, &self.descriptor).map(|_| ()));
        found.map_err(|error| raise(py, &error))
    }

    /// Sends a request to the owner's transport of this name, and returns its reply.
    fn exchange<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        payload: &[u8],
        timeout: f64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let limit = limit_of(Some(timeout))?;
        let reply = py.detach(|| {
            Link::get_or_connect(&self.domain, &self.descriptor)?.exchange(name, payload, limit)
        });
        reply.map(|bytes| PyBytes::new(py, &bytes)).map_err(|error| raise(py, &error))
    }

    /// Pins the memory of a buffer of this process for writing: a release waits while the pin
    /// exists.
    fn pin(&self, py: Python<'_>) -> PyResult<Local> {
        let (slot, key) = self.place()?;
        let pin = Pin::of(&self.domain, slot, key, true).map_err(|error| raise(py, &error))?;
        Ok(Local::pinned(pin))
    }

    /// A target for releasing a buffer in device memory; it cannot copy.
    fn anchor(slf: &Bound<'_, Self>) -> PyResult<PyTarget> {
        let (py, this) = (slf.py(), slf.get());
        let remote = Remote { is_on_device: true, ..this.remote };
        let target = if this.is_ours() {
            Target::ours(&this.domain, remote)
        } else {
            let link = py.detach(|| Link::get_or_connect(&this.domain, &this.descriptor));
            Target::anchor(&link.map_err(|error| raise(py, &error))?, remote)
        };
        let (domain, handle) = (Arc::clone(&this.domain), slf.clone().unbind());
        Ok(PyTarget { domain, target: Arc::new(target), handle })
    }

    /// Announces a copy to or from the buffer that uses no transport of this package. A release
    /// waits until the lease ends.
    fn acquire_copy_lease(&self, py: Python<'_>) -> PyResult<PyCopyLease> {
        let lease = py.detach(|| {
            if self.is_ours() {
                return CopyLease::ours(&self.domain, &self.remote);
            }
            CopyLease::theirs(&Link::get_or_connect(&self.domain, &self.descriptor)?, &self.remote)
        });
        lease.map(PyCopyLease::of).map_err(|error| raise(py, &error))
    }

    /// Whether the buffer is in device memory.
    #[getter]
    pub(crate) fn is_on_device(&self) -> bool {
        self.remote.is_on_device
    }

    /// Whether the buffer is memory of this process.
    #[getter]
    fn is_ours(&self) -> bool {
        !self.is_stale() && self.descriptor.token == self.domain.descriptor().token
    }

    /// Whether the handle was created in a process that this one was forked from. It can still be
    /// encoded.
    #[getter]
    fn is_stale(&self) -> bool {
        self.generation != generation()
    }

    /// Whether the owner runs on this machine.
    #[getter]
    fn is_same_machine(&self) -> bool {
        self.descriptor.boot == self.domain.descriptor().boot
    }

    /// Whether the buffer is writable.
    #[getter]
    fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.remote.len
    }

    /// An id that the handles of all buffers of a process share, and no others.
    #[getter]
    fn process(&self) -> &[u8] {
        &self.descriptor.token
    }

    /// An id that the handles of all buffers of a machine share, and no others. A container with a
    /// separate network counts as a machine.
    #[getter]
    fn machine<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.descriptor.boot)
    }

    /// The name of the owner.
    #[getter]
    fn owner(&self) -> &str {
        &self.descriptor.name
    }

    /// An id that all handles of a registration share, and no others.
    #[getter]
    fn identity(&self) -> (Vec<u8>, u32, u64) {
        (self.descriptor.token.to_vec(), self.remote.slot, self.remote.key)
    }
}

impl Handle {
    /// The descriptor for other processes. They may be on other machines, so this process listens
    /// for connections from its first descriptor on.
    fn public_descriptor(&self, py: Python<'_>) -> PyResult<Arc<PeerDescriptor>> {
        if !self.is_ours() {
            return Ok(Arc::clone(&self.descriptor));
        }
        if let Some(source) = CREDENTIALS.get(py)
            && source.call0(py)?.is_truthy(py)?
        {
            self.domain.set_has_credentials();
        }
        py.detach(|| self.domain.public_descriptor()).map_err(|error| raise(py, &error))
    }

    /// The slot and key of a registration of this process.
    pub(crate) fn place(&self) -> PyResult<(u32, u64)> {
        if self.is_ours() {
            return Ok((self.remote.slot, self.remote.key));
        }
        Err(PyValueError::new_err("the buffer belongs to another process"))
    }

    fn find(&self, name: Option<&str>) -> Result<(Option<Target>, Refusals), DataError> {
        let mut refused = Vec::new();
        let mut taken = None;
        for transport in Transport::ALL {
            if name.is_some_and(|name| name != transport.name()) {
                continue;
            }
            match self.target(transport) {
                Ok(target) if taken.is_none() => taken = Some(target),
                Ok(_) => refused.push((transport.name(), "a better one is used".to_owned())),
                Err(DataError::TransportUnavailable { why, .. }) => {
                    refused.push((transport.name(), why))
                }
                Err(error) => return Err(error),
            }
        }
        Ok((taken, refused))
    }

    fn target(&self, transport: Transport) -> Result<Target, DataError> {
        if !self.is_ours() {
            return Target::of(
                &Link::get_or_connect(&self.domain, &self.descriptor)?,
                self.remote,
                transport,
            );
        }
        let why = match transport {
            _ if self.remote.is_on_device => ON_DEVICE_WHY,
            Transport::Memory => return Ok(Target::ours(&self.domain, self.remote)),
            _ => "the buffer is in this process",
        };
        Err(DataError::TransportUnavailable { transport: transport.name(), why: why.to_owned() })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if matches!(self.held_lease, HeldLease::Local) && !self.is_stale() {
            self.domain.end_lease(self.remote.slot, self.remote.key);
        }
    }
}

/// A buffer and the transport to it.
#[pyclass(frozen, name = "Target", module = "mesh_rdma._core")]
pub(crate) struct PyTarget {
    pub(crate) domain: Arc<Domain>,
    pub(crate) target: Arc<Target>,
    /// Kept as long as transfers exist, because they count as a use of the buffer, too.
    handle: Py<Handle>,
}

#[pymethods]
impl PyTarget {
    /// Whether this target is unusable: its owner has exited, or it belongs to the parent of a
    /// forked child. Another transport may still work.
    #[getter]
    fn is_over(&self) -> bool {
        self.target.check().is_err()
    }

    /// The name of the transport.
    #[getter]
    fn transport(&self) -> &'static str {
        self.target.transport().name()
    }

    /// Copies from the buffer, starting at `offset`, as many bytes as `local` has. Returns `None`
    /// if the copy is complete, or a transfer to wait for.
    fn read(
        &self,
        py: Python<'_>,
        local: &Bound<'_, Local>,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<PyTransfer>> {
        self.copy(py, Direction::Read, local, offset, timeout)
    }

    /// Copies all bytes of `local` to the buffer, starting at `offset`.
    fn write(
        &self,
        py: Python<'_>,
        local: &Bound<'_, Local>,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<PyTransfer>> {
        self.copy(py, Direction::Write, local, offset, timeout)
    }

    /// Adds to a 64-bit word atomically. Returns the previous value.
    fn fetch_add(
        &self,
        py: Python<'_>,
        offset: u64,
        add: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.change(py, Verb::FetchAdd, offset, add, 0, timeout)
    }

    /// Replaces a 64-bit word with `swap` if it equals `compare`, atomically. Returns the previous
    /// value.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        offset: u64,
        compare: u64,
        swap: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        self.change(py, Verb::CompareAndSwap, offset, swap, compare, timeout)
    }

    /// Requests that the owner release the registration.
    fn release(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let stop = Stop::after(limit_of(timeout)?);
        py.detach(|| self.target.release(&stop)).map_err(|error| raise(py, &error))
    }

    /// Maps a range of the buffer without a copy.
    fn view(&self, py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<View> {
        self.target.view(offset, nbytes).map(View).map_err(|error| raise(py, &error))
    }
}

impl PyTarget {
    fn copy(
        &self,
        py: Python<'_>,
        direction: Direction,
        local: &Bound<'_, Local>,
        offset: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<PyTransfer>> {
        // Checked before the copy starts, so that the caller can try another transport.
        self.target.check().map_err(|error| raise(py, &error))?;
        let span = local.get().host_span().map_err(|error| raise(py, &error))?;
        let stop = Stop::after(limit_of(timeout)?);
        let is_direct = !matches!(self.target.transport(), Transport::Unix | Transport::Tcp);
        if is_direct && span.len <= INLINE_LEN {
            // SAFETY: `local` keeps the memory alive, and the caller holds a reference to it.
            let copy = || unsafe { self.target.copy(direction, span, offset, &stop) };
            let done = if span.len <= QUICK_LEN { copy() } else { py.detach(copy) };
            return done.map(|()| None).map_err(|error| raise(py, &error));
        }
        let target = Arc::clone(&self.target);
        let operations = vec![Operation::Copy(Copy { target, direction, local: span, offset })];
        let owners =
            Box::new(DropWithGil(Some((local.clone().unbind(), self.handle.clone_ref(py)))));
        // SAFETY: the owners keep the memory alive.
        let transfer = unsafe { Transfer::new(operations, stop, owners) };
        transfer.start(&self.domain);
        Ok(Some(PyTransfer(transfer)))
    }

    fn change(
        &self,
        py: Python<'_>,
        verb: Verb,
        offset: u64,
        operand: u64,
        compare: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let stop = Stop::after(limit_of(timeout)?);
        let changed = py.detach(|| self.target.change(verb, offset, operand, compare, &stop));
        changed.map_err(|error| raise(py, &error))
    }
}

/// A Python object whose memory is used by threads that do not hold the GIL.
pub(crate) struct DropWithGil<T>(pub(crate) Option<T>);

impl<T> Drop for DropWithGil<T> {
    fn drop(&mut self) {
        let mut object = self.0.take();
        with_python(|_| object = None);
        // If the interpreter has already shut down, the object is leaked.
        std::mem::forget(object);
    }
}

/// Discards the state of the parent in a forked child.
#[pyfunction]
fn reset_after_fork() {
    calls::reset_after_fork();
    process::detach_child();
}

/// The number of valid registrations, of released registrations whose memory is still in use, of
/// processes connected to this one, and of processes that this one is connected to.
#[pyfunction]
fn counts(py: Python<'_>) -> PyResult<(usize, usize, usize, usize)> {
    let domain = domain(py)?;
    let ((good, deferred), (here, there)) = (domain.counts(), domain.connections());
    Ok((good, deferred, here, there))
}

/// The id of this process's machine, like `Handle.machine`.
#[pyfunction]
fn machine<'py>(py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &domain(py)?.descriptor().boot))
}

/// Sets how long handles that are sent from now on may be in transit.
#[pyfunction]
fn set_transit_timeout(py: Python<'_>, seconds: f64) -> PyResult<()> {
    let limit = limit_of(Some(seconds))?.unwrap_or_default();
    domain(py)?.set_transit_timeout(limit);
    Ok(())
}

/// The number of refused connections by reason: the fields of `mesh_rdma.testing.Refusals`.
#[pyfunction]
fn refusals(py: Python<'_>) -> PyResult<(u64, u64, u64, u64, u64)> {
    let domain = domain(py)?;
    let refused = |why| domain.refused(why);
    Ok((
        refused(Refusal::NoTls),
        refused(Refusal::NoSecret),
        refused(Refusal::Silent),
        refused(Refusal::OtherUser),
        refused(Refusal::Evicted),
    ))
}

/// Sets the callable that reports whether the job has credentials. Only the first call has an
/// effect.
#[pyfunction]
fn set_credentials_check(py: Python<'_>, has_credentials: Py<PyAny>) {
    let _ = CREDENTIALS.set(py, has_credentials);
}

/// Sets the address for connections from other machines ("auto", "all", "loopback", or an address),
/// and the number of connections per transfer (`None`: the default for this machine). Returns
/// whether the call was early enough to take effect.
#[pyfunction]
fn configure(listen: &str, tcp_streams: Option<usize>) -> PyResult<bool> {
    let listen = match listen {
        "auto" => Listen::Auto,
        "all" => Listen::All,
        "loopback" => Listen::Loopback,
        address => Listen::At(address.parse().map_err(|_| {
            PyValueError::new_err(format!("{address:?} is not an address of this machine"))
        })?),
    };
    Ok(process::configure(Options { listen, tcp_streams }))
}

/// Sets the callable that replies to requests to transports of this process.
#[pyfunction]
fn set_request_handler(py: Python<'_>, request_handler: Py<PyAny>) -> PyResult<()> {
    let handle = move |name: &str, payload: &[u8]| {
        let reply = with_python(|py| {
            let response = request_handler.call1(py, (name, PyBytes::new(py, payload)));
            response.and_then(|bytes| bytes.extract(py)).map_err(|error: PyErr| error.to_string())
        });
        reply.unwrap_or_else(|| Err("the process is ending".to_owned()))
    };
    domain(py)?.set_request_handler(Box::new(handle));
    Ok(())
}

pub(crate) fn domain(py: Python<'_>) -> PyResult<Arc<Domain>> {
    process::domain().map_err(|error| raise(py, &error))
}

fn encode(descriptor: &PeerDescriptor, remote: &Remote, is_writable: bool) -> Vec<u8> {
    let (segment, place) = remote.arena.unwrap_or_default();
    let mut flags = if is_writable { WRITABLE } else { 0 };
    flags |= if remote.arena.is_some() { IN_ARENA } else { 0 };
    flags |= if remote.is_on_device { ON_DEVICE } else { 0 };
    let mut bytes = Vec::with_capacity(REMOTE_LEN + 128);
    bytes.extend(remote.slot.to_le_bytes());
    bytes.extend(remote.key.to_le_bytes());
    bytes.extend(remote.len.to_le_bytes());
    bytes.extend(remote.address.to_le_bytes());
    bytes.extend(segment.to_le_bytes());
    bytes.extend(place.to_le_bytes());
    bytes.push(flags);
    bytes.extend(descriptor.encode());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(PeerDescriptor, Remote, bool)> {
    let (head, descriptor) = bytes.split_at_checked(REMOTE_LEN)?;
    let word = |at: usize| {
        let word = head.get(at..at + 8)?;
        word.try_into().ok().map(u64::from_le_bytes)
    };
    let half = |at: usize| {
        let half = head.get(at..at + 4)?;
        half.try_into().ok().map(u32::from_le_bytes)
    };
    let flags = *head.last()?;
    let arena = (half(28)?, word(32)?);
    let arena = (flags & IN_ARENA != 0).then_some(arena);
    let is_on_device = flags & ON_DEVICE != 0;
    let (slot, key, len, address) = (half(0)?, word(4)?, word(12)?, word(20)?);
    let remote = Remote { slot, key, len, address, arena, is_on_device };
    Some((PeerDescriptor::decode(descriptor)?, remote, flags & WRITABLE != 0))
}
