//! Python binding of the engine of this process.

use crate::call_guard::CallGuard;
use crate::engine_backend::EngineBackend;
use crate::event_log::PyEventLog;
use crate::listener::PyListener;
use crate::message::Message;
use crate::outgoing::{Outgoing, PyTargets, meta_from, sendable, tail_of, too_long};
use crate::ready_queue::{PyLoopReader, PyReadyQueue};
use crate::segments::{Packed, Segments};
use crate::shared_buffer::{SharedBuffer, contiguous};
use crate::thread_wait::{interruptions, is_over, parker, seconds};
use crate::trust::PyKeys;
use mesh_runtime::engine::dial::Route;
use mesh_runtime::engine::wire::Descriptors;
use mesh_runtime::engine::{CutOff, Engine, Waiter};
use mesh_runtime::mailbox::Closed;
use mesh_runtime::node::{CallSpec, HostWatch, Node, NodeConfig, Progress, Reply, SendError};
use mesh_wire::frame::{Frame, TAIL_LEN_MAX};
use mesh_wire::id::{Address, HostId, JobId, PortId, ProcId};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pyo3::create_exception!(_core, Full, pyo3::exceptions::PyException, "A receiver is full.");
pyo3::create_exception!(_core, PortClosed, pyo3::exceptions::PyException, "(code, detail).");

/// Registers the classes and exceptions of this module in `mesh_core._core`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Full", module.py().get_type::<Full>())?;
    module.add("PortClosed", module.py().get_type::<PortClosed>())?;
    module.add_class::<PyTargets>()?;
    module.add_class::<PyReadyQueue>()?;
    module.add_class::<PyLoopReader>()?;
    module.add_class::<CallGuard>()?;
    module.add_class::<PyEngine>()
}

/// The time origin of every engine of this process. A program may have several engines in sequence,
/// and subscribers to their events see a single clock.
static EPOCH: OnceLock<Instant> = OnceLock::new();

/// The engine of one process of a job.
#[pyclass(frozen, name = "Engine", module = "mesh_core._core")]
pub(crate) struct PyEngine {
    engine: EngineBackend,
    segments: Arc<Segments>,
}

#[pymethods]
impl PyEngine {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the one place where a process is described")]
    fn new(
        host: u32,
        slot: u32,
        incarnation: u32,
        job: [u8; 16],
        token: [u8; 32],
        directory: PathBuf,
        backlog_bytes_max: usize,
        segment_pool_bytes_max: usize,
        on_cut_off: Py<PyAny>,
    ) -> PyResult<Self> {
        let me = ProcId::new(host, slot);
        let job = JobId(job);
        let config = NodeConfig { me, incarnation, job, token, backlog_bytes_max };
        let cut_off = move |why: CutOff| {
            let is_orphaned = why == CutOff::Agent;
            // The callback ends the process, so an exception that it raises can only be printed.
            Python::attach(|py| {
                on_cut_off.call1(py, (is_orphaned,)).map_or_else(|error| error.print(py), drop);
            });
        };
        let segments = Arc::new(Segments::new(me, segment_pool_bytes_max));
        let descriptors = Arc::clone(&segments) as Arc<dyn Descriptors>;
        let epoch = *EPOCH.get_or_init(Instant::now);
        let engine = Engine::start(config, directory, descriptors, Box::new(cut_off), epoch)?;
        Ok(Self { engine: EngineBackend::Real(engine), segments })
    }

    #[getter]
    fn me(&self) -> u64 {
        self.engine.me().to_u64()
    }

    fn close(&self) {
        self.engine.close();
    }

    /// Accepts connections from processes of this host. The directory must exist.
    fn listen(&self) -> PyResult<()> {
        match &self.engine {
            EngineBackend::Real(engine) => Ok(engine.listen()?),
            EngineBackend::Simulated(_) => Ok(()),
        }
    }

    fn dial(&self, proc: u64) {
        self.engine.with_node(|node| node.dial(ProcId::from_u64(proc)));
    }

    fn new_port(&self) -> u64 {
        self.engine.with_node(|node| node.new_port().0)
    }

    fn open_mailbox(&self, port: u64, window: u32) {
        self.engine.with_node(|node| node.open_mailbox(PortId(port), window));
    }

    fn is_up(&self, proc: u64) -> bool {
        self.engine.with_node(|node| node.link_to(ProcId::from_u64(proc))).is_some()
    }

    fn was_up(&self, proc: u64) -> bool {
        self.engine.with_node(|node| node.was_up(ProcId::from_u64(proc)))
    }

    fn drain(&self, py: Python<'_>, limit_s: f64) {
        if let EngineBackend::Real(engine) = &self.engine {
            py.detach(|| engine.drain(Duration::from_secs_f64(limit_s)));
        }
    }

    fn expect_spawns(&self, up_to: u64, expected: Vec<u64>) {
        let expected = expected.into_iter().map(PortId).collect();
        self.engine.with_node(|node| node.expect_spawns(PortId(up_to), expected));
    }

    /// Enables or disables keeping messages that arrive before their receiver is spawned.
    fn keep_early_messages(&self, is_on: bool) {
        self.engine.with_node(|node| node.keep_early_messages(is_on));
    }

    fn close_mailbox(&self, port: u64, code: u8, detail: &[u8]) {
        if self.engine.is_aborted() {
            return;
        }
        let closed = Closed { code, detail: detail.to_vec().into() };
        self.engine.with_node(|node| node.close_mailbox(PortId(port), closed));
    }

    fn drop_port(&self, port: u64) {
        if self.engine.is_aborted() {
            return;
        }
        self.engine.with_node(|node| node.drop_port(PortId(port)));
        self.engine.clear_waiter(PortId(port));
    }

    fn mailbox_len(&self, port: u64) -> usize {
        self.engine.with_node(|node| node.mailbox_len(PortId(port)))
    }

    fn proc_started(&self, proc: u64, incarnation: u32) {
        self.engine.with_node(|node| node.proc_started(ProcId::from_u64(proc), incarnation));
    }

    fn proc_died(&self, py: Python<'_>, proc: u64, incarnation: u32, detail: &[u8]) {
        let (proc, detail) = (ProcId::from_u64(proc), detail.to_vec().into());
        match &self.engine {
            EngineBackend::Real(_) => {
                py.detach(|| self.engine.proc_died(proc, incarnation, detail))
            }
            EngineBackend::Simulated(_) => self.engine.proc_died(proc, incarnation, detail),
        }
    }

    /// Sets the addresses of another host (`name:port`), the gateway to it (empty if none is
    /// needed), and the credentials that it accepts, if they differ from those of `set_trust`.
    #[pyo3(signature = (host, addresses, gateway = Vec::new(), keys = None))]
    fn set_route(
        &self,
        host: u32,
        addresses: Vec<String>,
        gateway: Vec<String>,
        keys: Option<&PyKeys>,
    ) -> PyResult<()> {
        let trust = keys.map(PyKeys::trust).transpose()?;
        if let EngineBackend::Real(engine) = &self.engine {
            engine.set_route(HostId(host), Route { addresses, gateway }, trust);
        }
        Ok(())
    }

    /// Sets the credentials that this process presents to other hosts.
    fn set_trust(&self, keys: &PyKeys) -> PyResult<()> {
        if let EngineBackend::Real(engine) = &self.engine {
            engine.set_trust(keys.trust()?);
        }
        Ok(())
    }

    /// Accepts connections from other hosts. Requests for this worker still go to `next_request` of
    /// the listener.
    fn admit(&self, listener: &PyListener) {
        if let EngineBackend::Real(engine) = &self.engine {
            engine.admit(listener.inner());
        }
    }

    /// Sets the number of hosts to which this host forwards a cast.
    fn set_fanout(&self, fanout: u16) {
        self.engine.with_node(|node| node.set_fanout(fanout));
    }

    /// Monitors another host. After three missed heartbeats the host is dead, unless its kernel
    /// still acknowledges data; in that case it is dead after `unresponsive_timeout_s`.
    fn monitor_host(
        &self,
        host: u32,
        heartbeat_s: f64,
        unresponsive_timeout_s: f64,
        exit_report: &[u8],
        unresponsive: &[u8],
    ) -> PyResult<()> {
        let watch = HostWatch {
            heartbeat: seconds(heartbeat_s)?,
            unresponsive_timeout: seconds(unresponsive_timeout_s)?,
            exit_report: exit_report.to_vec().into(),
            unresponsive: unresponsive.to_vec().into(),
        };
        self.engine.with_node_now(|node| node.monitor_host(HostId(host), watch));
        Ok(())
    }

    /// Seconds for which a host has been silent; `None` if it sends heartbeats.
    fn host_silence_s(&self, host: u32) -> Option<f64> {
        self.engine.with_node(|node| node.silence_of(HostId(host))).map(|one| one.as_secs_f64())
    }

    /// Declares another host dead.
    fn declare_host_dead(&self, host: u32, exit_report: &[u8]) {
        let exit_report = exit_report.to_vec().into();
        self.engine.with_node(|node| node.declare_host_dead(HostId(host), exit_report));
    }

    /// Registers the machine that replaces a dead host.
    fn host_replaced(&self, host: u32, epoch: u32) {
        self.engine.with_node(|node| node.host_replaced(HostId(host), epoch));
    }

    /// Holds messages for a host from now on, because it is about to move to another machine.
    fn hold_host(&self, host: u32) {
        self.engine.with_node(|node| node.hold_host(HostId(host)));
    }

    /// Sends the messages that were held for a host.
    fn release_host(&self, host: u32) {
        self.engine.with_node(|node| node.release_host(HostId(host)));
    }

    /// Whether a host has received everything that was sent to it; otherwise requests an ack.
    fn has_received_all(&self, host: u32) -> bool {
        self.engine.with_node(|node| node.has_received_all(HostId(host)))
    }

    /// Registers the machine that continues a host with the state of its processes.
    fn host_moved(&self, host: u32, epoch: u32) {
        self.engine.with_node(|node| node.host_moved(HostId(host), epoch));
    }

    /// The number of messages and replies that have arrived, and whether no work is pending.
    fn activity(&self) -> (u64, bool) {
        let activity = self.engine.with_node(Node::activity);
        (activity.received_count, activity.is_quiet)
    }

    /// Returns the credit of all messages that were taken from the mailboxes of this process.
    fn return_credit(&self) {
        self.engine.with_node(Node::return_credit);
    }

    /// The epoch of the machine that currently serves as this host, as far as this process knows; 0
    /// is the first machine.
    fn host_epoch(&self, host: u32) -> u32 {
        self.engine.with_node(|node| node.host_epoch(HostId(host)))
    }

    fn is_host_dead(&self, host: u32) -> bool {
        self.engine.with_node(|node| node.is_host_dead(HostId(host)))
    }

    /// Notifies a host that was declared dead, over the same route as `set_route`, and waits until
    /// it leaves the job.
    #[pyo3(signature = (host, epoch, addresses, limit_s, gateway = Vec::new(), keys = None))]
    #[expect(clippy::too_many_arguments, reason = "one crossing of the border")]
    fn fence(
        &self,
        py: Python<'_>,
        host: u32,
        epoch: u32,
        addresses: Vec<String>,
        limit_s: f64,
        gateway: Vec<String>,
        keys: Option<&PyKeys>,
    ) -> PyResult<()> {
        let (route, limit) = (Route { addresses, gateway }, seconds(limit_s)?);
        let trust = keys.map(PyKeys::trust).transpose()?;
        match &self.engine {
            EngineBackend::Real(engine) => py
                .detach(|| engine.fence(HostId(host), epoch, &route, trust, limit))
                .map_err(PyOSError::new_err),
            EngineBackend::Simulated(process) if process.fence(HostId(host), epoch) => Ok(()),
            EngineBackend::Simulated(_) => Err(PyOSError::new_err("the host cannot be reached")),
        }
    }

    fn watch(&self, proc: u64) {
        self.engine.with_node(|node| node.watch(ProcId::from_u64(proc)));
    }

    /// Sends a message that expects replies. Returns the port of the replies. If a receiver has no
    /// capacity, waits for it, or postpones the message if `on_full` returns true.
    #[pyo3(signature = (
        kind, targets, port, meta, body, buffers, window, timeout, on_full, origin = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "the hot path: one crossing of the border")]
    fn call(
        &self,
        py: Python<'_>,
        kind: u8,
        targets: &PyTargets,
        port: u64,
        meta: &[u8],
        body: &[u8],
        buffers: Vec<PyBuffer<u8>>,
        window: u32,
        timeout: Option<f64>,
        on_full: Option<&Bound<'_, PyAny>>,
        origin: Option<&[u8]>,
    ) -> PyResult<u64> {
        self.check_process()?;
        let (kind, meta) = (sendable(kind)?, &*meta_from(origin, meta)?);
        let timeout = timeout.map(seconds).transpose()?;
        let readers = targets.readers(&buffers);
        let packed = self.pack(py, body.len(), &buffers, &readers)?;
        let packed = &packed;
        let spec = Outgoing { kind, targets, port, meta, body, packed, window, timeout }.spec(py);
        let sent = spec.and_then(|spec| {
            let call = |call: fn(&mut Node, &CallSpec) -> Result<PortId, SendError>| {
                let result = match spec.timeout {
                    None => self.engine.with_node(|node| call(node, &spec)),
                    Some(_) => self.engine.with_node_now(|node| call(node, &spec)),
                };
                result.map(|port| port.0)
            };
            let postpone = || call(Node::call_or_postpone);
            self.send_with(py, on_full, &spec, || call(Node::call), postpone)
        });
        sent.inspect_err(|_| self.segments.unpack(packed, &readers))
    }

    /// Sends a message. Replies, if any, become messages of the channel `replies` (0: no replies).
    /// If a receiver has no capacity, waits for it, or fails if `on_full` returns true.
    #[pyo3(signature = (
        kind, targets, port, meta, body, buffers, window, reply_port, on_full, origin = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "the hot path: one crossing of the border")]
    fn send(
        &self,
        py: Python<'_>,
        kind: u8,
        targets: &PyTargets,
        port: u64,
        meta: &[u8],
        body: &[u8],
        buffers: Vec<PyBuffer<u8>>,
        window: u32,
        reply_port: u64,
        on_full: Option<&Bound<'_, PyAny>>,
        origin: Option<&[u8]>,
    ) -> PyResult<()> {
        self.check_process()?;
        let (kind, meta) = (sendable(kind)?, &*meta_from(origin, meta)?);
        let readers = targets.readers(&buffers);
        let packed = self.pack(py, body.len(), &buffers, &readers)?;
        let (packed, timeout) = (&packed, None);
        let spec = Outgoing { kind, targets, port, meta, body, packed, window, timeout }.spec(py);
        let sent = spec.and_then(|spec| {
            let send = || {
                let port = PortId(reply_port);
                self.engine.with_node(|node| node.send_with_reply_port(&spec, port))
            };
            self.send_with(py, on_full, &spec, send, send)
        });
        sent.inspect_err(|_| self.segments.unpack(packed, &readers))
    }

    /// Waits for replies. Returns `None` if the timeout expires.
    fn wait(
        &self,
        py: Python<'_>,
        reply_port: u64,
        timeout: Option<f64>,
    ) -> PyResult<Option<Vec<Message>>> {
        self.check_process()?;
        let (port, timeout) = (PortId(reply_port), timeout.map(seconds).transpose()?);
        let mut replies = Vec::new();
        let engine = match &self.engine {
            EngineBackend::Real(engine) => engine,
            EngineBackend::Simulated(process) => {
                let is_ready = |node: &mut Node| node.is_ready(port).then_some(());
                let ready = process.wait_for(py, port, timeout, is_ready)?;
                return Ok(ready.map(|()| {
                    process.take_replies(port, &mut replies);
                    self.replies(replies)
                }));
            }
        };
        let until = timeout.map(|left| Instant::now() + left);
        let parker = parker(engine);
        loop {
            if py.detach(|| engine.wait_replies(port, &parker, until, &mut replies)).is_some() {
                return Ok(Some(self.replies(replies)));
            }
            interruptions(py)?;
            if is_over(until) {
                return Ok(None);
            }
        }
    }

    /// Takes the replies that have arrived. The flag is true if no more will follow.
    fn take(&self, reply_port: u64) -> PyResult<(Vec<Message>, bool)> {
        self.check_process()?;
        let mut replies = Vec::new();
        let done = self.engine.take_replies(PortId(reply_port), &mut replies);
        Ok((self.replies(replies), done == Progress::Complete))
    }

    fn is_ready(&self, port: u64) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.engine.with_node(|node| node.is_ready(PortId(port))))
    }

    /// Cancels a call. Returns false if another thread has already taken its replies.
    fn cancel(&self, reply_port: u64) -> PyResult<bool> {
        self.check_process()?;
        let is_ours = self.engine.with_node(|node| node.cancel(PortId(reply_port)));
        self.engine.clear_waiter(PortId(reply_port));
        Ok(is_ours)
    }

    fn set_stream(&self, reply_port: u64) {
        self.engine.with_node(|node| node.set_stream(PortId(reply_port)));
    }

    /// Waits for messages of a mailbox. Returns an empty list if the timeout expires.
    fn receive(
        &self,
        py: Python<'_>,
        port: u64,
        max: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Message>> {
        self.check_process()?;
        let (port, timeout) = (PortId(port), timeout.map(seconds).transpose()?);
        let mut frames = Vec::new();
        let engine = match &self.engine {
            EngineBackend::Real(engine) => engine,
            EngineBackend::Simulated(process) => {
                let take = |node: &mut Node| match node.take_messages(port, max, &mut frames) {
                    Ok(()) if frames.is_empty() => None,
                    taken => Some(taken),
                };
                let taken = process.wait_for(py, port, timeout, take)?;
                taken.unwrap_or(Ok(())).map_err(|closed| port_closed(py, &closed))?;
                return Ok(self.messages(frames));
            }
        };
        let until = timeout.map(|left| Instant::now() + left);
        let parker = parker(engine);
        loop {
            let got = py.detach(|| engine.receive(port, &parker, until, max, &mut frames));
            if got.map_err(|closed| port_closed(py, &closed))? {
                return Ok(self.messages(frames));
            }
            interruptions(py)?;
            if is_over(until) {
                return Ok(Vec::new());
            }
        }
    }

    /// Arms the next `wait_ready` of this thread: it returns immediately if anything arrives from
    /// now on, even if another thread takes it first.
    fn arm_wait(&self, port: u64) -> PyResult<()> {
        self.check_process()?;
        match &self.engine {
            EngineBackend::Real(engine) => {
                engine.set_waiter(PortId(port), Waiter::Thread(parker(engine)))
            }
            EngineBackend::Simulated(process) => process.arm(PortId(port)),
        }
        Ok(())
    }

    /// Waits until something has arrived on a port. May return early, so check the port and call
    /// again.
    fn wait_ready(&self, py: Python<'_>, port: u64, timeout: Option<f64>) -> PyResult<()> {
        self.check_process()?;
        let timeout = timeout.map(seconds).transpose()?;
        let engine = match &self.engine {
            EngineBackend::Real(engine) => engine,
            EngineBackend::Simulated(process) => {
                return process.wait_once(py, PortId(port), timeout);
            }
        };
        let until = timeout.map(|left| Instant::now() + left);
        let parker = parker(engine);
        py.detach(|| engine.wait_ready(PortId(port), &parker, until));
        interruptions(py)
    }

    /// Takes messages that have already arrived, without waiting.
    fn receive_nowait(&self, py: Python<'_>, port: u64, max: usize) -> PyResult<Vec<Message>> {
        self.check_process()?;
        let mut frames = Vec::new();
        let got = self.engine.with_node(|node| node.take_messages(PortId(port), max, &mut frames));
        got.map_err(|closed| port_closed(py, &closed))?;
        Ok(self.messages(frames))
    }

    /// Reports `port` to the queue whenever something arrives.
    fn notify(&self, port: u64, queue: &PyReadyQueue) {
        self.engine.notify_loop(PortId(port), Arc::downgrade(&queue.0));
    }

    /// Creates a reader of the connections for the event loop that polls the queue.
    fn loop_reader(&self, queue: &PyReadyQueue) -> PyResult<PyLoopReader> {
        PyLoopReader::new(&self.engine, queue)
    }

    /// Replies to a message. Code 0 marks a value.
    #[pyo3(signature = (message, code, body, buffers = Vec::new()))]
    fn reply(
        &self,
        py: Python<'_>,
        message: &Message,
        code: u8,
        body: &[u8],
        buffers: Vec<PyBuffer<u8>>,
    ) -> PyResult<()> {
        self.check_process()?;
        let head = &message.frame.head;
        let packed = self.pack(py, body.len(), &buffers, &[head.from.proc])?;
        let tail_len = body.len() + packed.len();
        if tail_len > TAIL_LEN_MAX {
            self.segments.unpack(&packed, &[head.from.proc]);
            return Err(too_long(tail_len));
        }
        let tail = tail_of(py, &packed, &[], body);
        let meta = (0, packed.part_count());
        self.engine.with_node(|node| node.reply_to_message(&message.frame, code, meta, tail));
        Ok(())
    }

    /// Opens the large parts of a message, in order. They can be opened only once.
    fn buffers<'py>(&self, py: Python<'py>, message: &Message) -> PyResult<Vec<Bound<'py, PyAny>>> {
        if message.frame.head.part_count == 0 {
            return Ok(Vec::new());
        }
        if !message.open() {
            return Err(PyValueError::new_err("large parts of a message can be opened only once"));
        }
        let opened = match &self.engine {
            EngineBackend::Real(engine) => {
                self.segments.open(engine, message).map_err(PyOSError::new_err)?
            }
            // Messages of a simulation carry all their parts.
            EngineBackend::Simulated(_) => message.frame.parts().map(|_| None).collect(),
        };
        let object = |(part, mapping)| match mapping {
            Some(mapping) => Ok(Bound::new(py, SharedBuffer::new(mapping))?.into_any()),
            None => message.inline_buffer(py, part),
        };
        message.frame.parts().zip(opened).map(object).collect()
    }

    /// Bytes of this process's shared memory that readers still reference.
    fn shared_bytes_in_use(&self) -> usize {
        self.segments.bytes_in_use()
    }

    /// Disables this engine in a forked child, which cannot use it.
    fn abort(&self) {
        self.engine.abort();
    }

    /// Makes the pages of open messages private to this process. Call it before a fork.
    fn prepare_fork(&self) -> PyResult<()> {
        Ok(self.segments.prepare_fork()?)
    }

    /// Lets a call continue although its replies will not be taken.
    fn forget(&self, reply_port: u64) {
        self.engine.forget(PortId(reply_port));
    }

    /// Creates a guard of a call. When the guard is dropped, the replies are no longer awaited, and
    /// the agent is notified of an exception among them.
    fn guard(&self, reply_port: u64) -> CallGuard {
        CallGuard::new(self.engine.clone(), PortId(reply_port))
    }

    /// Skips the port numbers of the jobs that this process belonged to previously.
    fn skip_ports(&self, job_count: u32) {
        self.engine.with_node(|node| node.skip_ports(job_count));
    }

    /// Whether a call with a live guard has failed with exactly this detail, and its replies have
    /// not been taken yet.
    fn has_pending_fault(&self, detail: &[u8]) -> bool {
        self.engine.with_node(|node| node.has_pending_fault(detail))
    }

    /// Starts recording events, with a buffer for `len_max` events.
    fn start_events(&self, len_max: usize) {
        self.engine.with_node(|node| node.events().start(len_max));
    }

    /// Starts recording for a subscriber that is expected. Recording stops if none has subscribed
    /// before the buffer is full.
    fn start_early_events(&self, len_max: usize) {
        self.engine.with_node(|node| node.events().start_early(len_max));
    }

    /// Registers the numbers that endpoints already have in this process, starting at 1.
    fn register_endpoints(&self, names: Vec<PyBackedBytes>) {
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        self.engine.with_node(|node| node.events().register_endpoints(&names));
    }

    /// Stops recording.
    fn stop_events(&self) {
        self.engine.with_node(|node| node.events().stop());
    }

    /// Takes up to `max` events as records, oldest first. Also returns the number of events that
    /// were dropped before them, and the names of endpoints after the first `known`.
    fn take_events<'py>(
        &self,
        py: Python<'py>,
        max: usize,
        known: usize,
    ) -> (Bound<'py, PyBytes>, u64, Vec<Bound<'py, PyBytes>>) {
        let (records, dropped, names) = self.engine.with_node(|node| {
            let (records, dropped) = node.events().take(max);
            let names: Vec<Vec<u8>> = node.events().endpoints(known).map(<[u8]>::to_vec).collect();
            (records, dropped, names)
        });
        let names = names.iter().map(|name| PyBytes::new(py, name)).collect();
        (PyBytes::new(py, &records), dropped, names)
    }

    /// Starts a log that writes events to the files that the caller adds. Up to `waiting_max`
    /// events are buffered while it has no file.
    fn open_log(&self, waiting_max: usize, since_start: bool) -> PyEventLog {
        PyEventLog::open(&self.engine, waiting_max, since_start)
    }

    /// The current time of the clock of event timestamps, in nanoseconds.
    fn clock_ns(&self) -> u64 {
        u64::try_from(self.engine.clock().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Whether a call from this address is queued in a mailbox of this process.
    fn has_queued(&self, port: u64, from_proc: u64, from_port: u64) -> bool {
        let from = Address { proc: ProcId::from_u64(from_proc), port: PortId(from_port) };
        self.engine.with_node(|node| node.has_queued(PortId(port), from))
    }

    /// The missing replies of all calls: (reply port, process, port) of each.
    fn waits(&self) -> Vec<(u64, u64, u64)> {
        self.engine.with_node(|node| {
            let waits =
                node.waits().map(|(reply_port, to)| (reply_port.0, to.proc.to_u64(), to.port.0));
            waits.collect()
        })
    }
}

impl PyEngine {
    /// Creates the engine of a process of a simulation.
    pub(crate) fn on(engine: EngineBackend) -> Self {
        let segments = Arc::new(Segments::new(engine.me(), 0));
        Self { engine, segments }
    }

    pub(crate) fn backend(&self) -> &EngineBackend {
        &self.engine
    }

    fn messages(&self, frames: Vec<Frame>) -> Vec<Message> {
        frames.into_iter().map(|frame| Message::of_frame(frame, &self.engine)).collect()
    }

    fn replies(&self, replies: Vec<Reply>) -> Vec<Message> {
        replies.into_iter().map(|reply| Message::of_reply(reply, &self.engine)).collect()
    }

    /// Copies large buffers to memory that their readers can access, without the GIL.
    fn pack<'a>(
        &self,
        py: Python<'_>,
        body_len: usize,
        buffers: &'a [PyBuffer<u8>],
        readers: &[ProcId],
    ) -> PyResult<Packed<'a>> {
        if buffers.is_empty() {
            return Ok(Packed::none());
        }
        let lent: Vec<_> = buffers.iter().map(contiguous).collect::<PyResult<_>>()?;
        let segments = &self.segments;
        let packed = match &self.engine {
            EngineBackend::Real(engine) => {
                py.detach(|| segments.pack(engine, body_len, &lent, readers))
            }
            EngineBackend::Simulated(_) => Packed::inside(&lent, body_len),
        };
        packed.map_err(PyValueError::new_err)
    }

    /// Raises in a forked child, which has no engine threads and only copies of the parent's
    /// connections.
    fn check_process(&self) -> PyResult<()> {
        if self.engine.is_aborted() {
            let text = "this process was forked from one of the job and is no member of it: use \
                        what belongs to the job in the parent";
            return Err(PyRuntimeError::new_err(text));
        }
        Ok(())
    }

    /// Sends a message. If a receiver has no capacity, waits for it, or uses the alternative way to
    /// send it if `on_full` returns true.
    fn send_with<T>(
        &self,
        py: Python<'_>,
        on_full: Option<&Bound<'_, PyAny>>,
        spec: &CallSpec,
        send: impl Fn() -> Result<T, SendError>,
        send_without_wait: impl Fn() -> Result<T, SendError>,
    ) -> PyResult<T> {
        if let Ok(sent) = send() {
            return Ok(sent);
        }
        if on_full.map_or(Ok(false), |ask| ask.call0()?.is_truthy())? {
            return send_without_wait().map_err(|full| {
                Full::new_err(match full {
                    SendError::Full(target) => (target.proc.to_u64(), Some(target.rank)),
                    SendError::Backlog(proc) => (proc.to_u64(), None),
                })
            });
        }
        loop {
            match &self.engine {
                EngineBackend::Real(engine) => {
                    let parker = parker(engine);
                    py.detach(|| engine.wait_credit(&parker, None, |node| node.has_capacity(spec)));
                    interruptions(py)?;
                }
                EngineBackend::Simulated(process) => {
                    process.wait_for_capacity(py, |node| node.has_capacity(spec))?;
                }
            }
            if let Ok(sent) = send() {
                return Ok(sent);
            }
        }
    }
}

fn port_closed(py: Python<'_>, closed: &Closed) -> PyErr {
    PortClosed::new_err((closed.code, PyBytes::new(py, &closed.detail).unbind()))
}
