//! Python bindings of a worker's listener (`Listener`) and of requests to a worker.

use crate::trust::PyKeys;
use mesh_runtime::engine::dial::Route;
use mesh_runtime::engine::listener::{self, AcceptedConnection, Listener};
use mesh_wire::frame::{Frame, Head, Kind, UNKNOWN_PROC};
use mesh_wire::id::{Address, PortId};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Flag of a reply that refuses the request.
const REFUSED: u8 = 1;
/// Additional flag of a refusal: repeating the request is useless.
const FINAL: u8 = 4;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyListener>()?;
    module.add_class::<PyIncomingRequest>()?;
    module.add_function(wrap_pyfunction!(request_attach, module)?)
}

/// A worker's listening socket and its accept loop.
#[pyclass(frozen, name = "Listener", module = "mesh_core._core")]
pub(crate) struct PyListener(Arc<Listener>);

impl PyListener {
    pub(crate) fn inner(&self) -> &Listener {
        &self.0
    }
}

#[pymethods]
impl PyListener {
    /// Starts to accept connections on `listener`. If `refusal` is given, requests for the worker
    /// are refused with this text; otherwise they wait for `next_request`.
    #[new]
    #[pyo3(signature = (listener, keys, refusal = None))]
    #[expect(unsafe_code, reason = "a descriptor comes from Python as a number")]
    fn new(listener: RawFd, keys: &PyKeys, refusal: Option<&str>) -> PyResult<Self> {
        if listener < 0 {
            return Err(PyValueError::new_err(format!("{listener} is not a descriptor")));
        }
        // SAFETY: the number is not negative; if the descriptor is not open, the duplication fails.
        let listener = unsafe { BorrowedFd::borrow_raw(listener) }.try_clone_to_owned()?;
        let listener = Listener::open(listener, keys.trust()?)?;
        if let Some(why) = refusal {
            listener.refuse(reply_frame(false, why.as_bytes()));
        }
        Ok(Self(listener))
    }

    /// Waits up to `limit_s` seconds for the next request for this worker.
    fn next_request(&self, py: Python<'_>, limit_s: f64) -> Option<PyIncomingRequest> {
        let limit = Duration::try_from_secs_f64(limit_s).unwrap_or(Duration::ZERO);
        py.detach(|| self.0.next_request(limit)).map(PyIncomingRequest)
    }

    fn close(&self) {
        self.0.close();
    }
}

/// A pending request for a worker, with its connection.
#[pyclass(frozen, name = "IncomingRequest", module = "mesh_core._core")]
pub(crate) struct PyIncomingRequest(AcceptedConnection);

#[pymethods]
impl PyIncomingRequest {
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.first.tail)
    }

    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address.map(|address| address.to_string())
    }

    /// The role of the peer: `controller` or `worker`.
    #[getter]
    fn role(&self) -> Option<String> {
        self.0.role().map(|role| role.to_string())
    }

    /// Accepts or refuses the request. `body` contains the details; `is_final` marks a refusal that
    /// a retry cannot change.
    #[pyo3(signature = (is_accepted, body, is_final = false))]
    fn reply(
        &self,
        py: Python<'_>,
        is_accepted: bool,
        body: &[u8],
        is_final: bool,
    ) -> PyResult<()> {
        let mut frame = reply_frame(is_accepted, body);
        if is_final && !is_accepted {
            frame.head.flags |= FINAL;
        }
        py.detach(|| self.0.reply(&frame)).map_err(PyOSError::new_err)
    }
}

/// Requests that the worker at one of `addresses` serve a job. Returns whether it accepted, the
/// body of its reply, and whether a refusal is final.
#[pyfunction]
#[pyo3(signature = (addresses, keys, body, limit_s, gateway = Vec::new()))]
fn request_attach<'py>(
    py: Python<'py>,
    addresses: Vec<String>,
    keys: &PyKeys,
    body: &[u8],
    limit_s: f64,
    gateway: Vec<String>,
) -> PyResult<(bool, Bound<'py, PyBytes>, bool)> {
    let route = Route { addresses, gateway };
    let request = frame(Kind::Attach, 0, body);
    let limit = Duration::try_from_secs_f64(limit_s).unwrap_or(Duration::ZERO);
    let trust = keys.trust()?;
    let reply = py.detach(|| listener::request_attach(&route, &trust, &request, limit))?;
    let flags = reply.head.flags;
    Ok((flags & REFUSED == 0, PyBytes::new(py, &reply.tail), flags & FINAL != 0))
}

fn reply_frame(is_accepted: bool, body: &[u8]) -> Frame {
    frame(Kind::Attached, if is_accepted { 0 } else { REFUSED }, body)
}

fn frame(kind: Kind, flags: u8, body: &[u8]) -> Frame {
    let unknown = Address { proc: UNKNOWN_PROC, port: PortId::NONE };
    let mut head = Head::new(kind, unknown, unknown);
    head.flags = flags;
    Frame { head, tail: body.to_vec().into() }
}
