//! Python binding of a simulated cluster.

use crate::engine::PyEngine;
use crate::engine_backend::EngineBackend;
use crate::thread_wait::interruptions;
use bytes::Bytes;
use mesh_runtime::engine::ready::ReadyQueue;
use mesh_runtime::node::{Node, NodeConfig, Progress, Reply};
use mesh_sim::cluster::{Cluster, Next, ThreadId, Waiter};
use mesh_sim::message::Life;
use mesh_wire::id::{HostId, JobId, PortId, ProcId};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A cluster, and the function with which the running thread waits.
struct Simulation {
    cluster: Mutex<Cluster>,
    /// Called with the end of the wait in nanoseconds, or with None; `None` after `close`.
    wait: Mutex<Option<Py<PyAny>>>,
}

/// A simulated cluster: the nodes of its processes, their network and their clock.
#[pyclass(frozen, name = "Simulation", module = "mesh_core._core")]
pub(crate) struct PySimulation(Arc<Simulation>);

#[pymethods]
impl PySimulation {
    #[new]
    fn new(seed: u64, wait: Py<PyAny>) -> Self {
        let (cluster, wait) = (Mutex::new(Cluster::new(seed)), Mutex::new(Some(wait)));
        Self(Arc::new(Simulation { cluster, wait }))
    }

    /// Releases the function that waits.
    fn close(&self) {
        lock(&self.0.wait).take();
    }

    /// Starts a process. Returns its engine, and its number in this simulation.
    fn add_process(
        &self,
        host: u32,
        slot: u32,
        incarnation: u32,
        job: [u8; 16],
        token: [u8; 32],
        backlog_bytes_max: usize,
    ) -> (PyEngine, Life) {
        let (me, job) = (ProcId::new(host, slot), JobId(job));
        let config = NodeConfig { me, incarnation, job, token, backlog_bytes_max };
        let life = self.cluster().add_process(config);
        let simulation = Arc::clone(&self.0);
        let process = Arc::new(SimulatedProcess { simulation, life, me });
        (PyEngine::on(EngineBackend::Simulated(process)), life)
    }

    fn end_process(&self, process: Life, is_killed: bool) {
        self.cluster().end_process(process, is_killed);
    }

    fn add_thread(&self, process: Life) -> u32 {
        self.cluster().add_thread(process).0
    }

    /// Prepares the wait of the running thread. Returns false if it must not wait.
    #[pyo3(signature = (until_ns))]
    fn begin_wait(&self, until_ns: Option<u64>) -> bool {
        self.cluster().begin_wait(until_ns.map(Duration::from_nanos))
    }

    fn wake(&self, thread: u32) {
        self.cluster().wake(ThreadId(thread));
    }

    /// Makes a thread the running one without an event.
    fn resume(&self, thread: u32) {
        self.cluster().resume(ThreadId(thread));
    }

    /// Advances to the next event: `("thread", number)`, `("timer", token)`, `("descriptors", 0)`,
    /// or `("idle", 0)` if nothing will ever happen.
    fn advance(&self) -> (&'static str, u64) {
        match self.cluster().advance() {
            Next::Thread(thread) => ("thread", u64::from(thread.0)),
            Next::Timer(token) => ("timer", token),
            Next::Descriptors => ("descriptors", 0),
            Next::Idle => ("idle", 0),
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.cluster().now())
    }

    /// Reads the clock, which advances it a little.
    fn read_clock_ns(&self) -> u64 {
        nanoseconds(self.cluster().read_clock())
    }

    fn set_timer(&self, at_ns: u64, token: u64) {
        self.cluster().set_timer(Duration::from_nanos(at_ns), token);
    }

    fn random_below(&self, bound: u64) -> u64 {
        self.cluster().random_below(bound.max(1))
    }

    fn stall(&self, process: Life, length_ns: u64) {
        self.cluster().stall(process, Duration::from_nanos(length_ns));
    }

    fn end_stall(&self, process: Life) {
        self.cluster().end_stall(process);
    }

    fn slow_down(&self, host: u32, factor: u32) {
        self.cluster().slow_down(HostId(host), factor);
    }

    fn separate(&self, hosts: Vec<u32>, length_ns: u64) {
        let hosts = hosts.into_iter().map(HostId).collect();
        self.cluster().separate(hosts, Duration::from_nanos(length_ns));
    }

    fn break_connection(&self, process: Life) {
        self.cluster().break_connection(process);
    }

    fn trace_hash(&self) -> u64 {
        self.cluster().trace_hash()
    }
}

impl PySimulation {
    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        lock(&self.0.cluster)
    }
}

/// One process of a simulation.
pub(crate) struct SimulatedProcess {
    simulation: Arc<Simulation>,
    life: Life,
    me: ProcId,
}

impl SimulatedProcess {
    pub(crate) fn me(&self) -> ProcId {
        self.me
    }

    pub(crate) fn now(&self) -> Duration {
        self.cluster().now()
    }

    pub(crate) fn with_node<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        self.cluster().with_node(self.life, step)
    }

    pub(crate) fn proc_died(&self, proc: ProcId, incarnation: u32, detail: Bytes) {
        let mut cluster = self.cluster();
        cluster.deliver_all(proc, self.life);
        cluster.with_node(self.life, |node| node.proc_died(proc, incarnation, detail));
    }

    pub(crate) fn take_replies(&self, reply_port: PortId, out: &mut Vec<Reply>) -> Progress {
        let mut cluster = self.cluster();
        let progress = cluster.with_node(self.life, |node| node.take_replies(reply_port, out));
        if progress == Progress::Complete {
            cluster.clear_waiters(self.life, reply_port);
        }
        progress
    }

    pub(crate) fn notify_loop(&self, port: PortId, queue: Weak<ReadyQueue>) {
        self.cluster().set_waiter(self.life, port, Waiter::Loop(queue));
    }

    pub(crate) fn clear_waiters(&self, port: PortId) {
        self.cluster().clear_waiters(self.life, port);
    }

    pub(crate) fn end_wait(&self, reply_port: PortId, end: fn(&mut Node, PortId)) {
        let mut cluster = self.cluster();
        cluster.clear_waiters(self.life, reply_port);
        cluster.with_node(self.life, |node| end(node, reply_port));
    }

    pub(crate) fn fence(&self, host: HostId, epoch: u32) -> bool {
        self.cluster().fence(self.life, host, epoch)
    }

    /// Wakes the running thread at the next arrival at a port, even if it does not wait yet.
    pub(crate) fn arm(&self, port: PortId) {
        self.cluster().set_waiter(self.life, port, Waiter::Thread);
    }

    /// Waits until `take` returns something for a port; returns `None` if the time is over.
    pub(crate) fn wait_for<T>(
        &self,
        py: Python<'_>,
        port: PortId,
        timeout: Option<Duration>,
        mut take: impl FnMut(&mut Node) -> Option<T>,
    ) -> PyResult<Option<T>> {
        let until = timeout.map(|timeout| self.now() + timeout);
        loop {
            if let Some(found) = self.with_node(&mut take) {
                return Ok(Some(found));
            }
            if until.is_some_and(|until| self.now() >= until) {
                return Ok(None);
            }
            self.arm(port);
            self.wait(py, until)?;
        }
    }

    /// Waits once for an arrival at a port or the end of the time.
    pub(crate) fn wait_once(
        &self,
        py: Python<'_>,
        port: PortId,
        timeout: Option<Duration>,
    ) -> PyResult<()> {
        if self.with_node(|node| node.is_ready(port)) {
            return Ok(());
        }
        self.arm(port);
        self.wait(py, timeout.map(|timeout| self.now() + timeout))
    }

    /// Waits until a receiver may have capacity again.
    pub(crate) fn wait_for_capacity(
        &self,
        py: Python<'_>,
        has_capacity: impl Fn(&Node) -> bool,
    ) -> PyResult<()> {
        if self.with_node(|node| has_capacity(node)) {
            return Ok(());
        }
        self.cluster().wait_for_credit(self.life);
        self.wait(py, None)
    }

    /// Lets other threads run until this one is woken.
    fn wait(&self, py: Python<'_>, until: Option<Duration>) -> PyResult<()> {
        let wait = lock(&self.simulation.wait).as_ref().map(|wait| wait.clone_ref(py));
        let Some(wait) = wait else {
            let text = "the simulation is over: nothing of it can be used any more";
            return Err(PyRuntimeError::new_err(text));
        };
        wait.call1(py, (until.map(nanoseconds),))?;
        interruptions(py)
    }

    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        lock(&self.simulation.cluster)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
