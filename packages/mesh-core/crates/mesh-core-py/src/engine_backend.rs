//! The backend of a Python `Engine`: the engine of this process, or a process of a simulation.

use crate::simulation::SimulatedProcess;
use bytes::Bytes;
use mesh_runtime::engine::ready::ReadyQueue;
use mesh_runtime::engine::{Engine, Waiter};
use mesh_runtime::node::{Node, Progress, Reply};
use mesh_wire::id::{PortId, ProcId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The driver of a node. Both kinds have the same methods, as far as Python needs them.
#[derive(Clone)]
pub(crate) enum EngineBackend {
    /// A process of a job, with sockets and waiting threads.
    Real(Arc<Engine>),
    /// A process of a simulated cluster, which shares this process with all others.
    Simulated(Arc<SimulatedProcess>),
}

impl EngineBackend {
    pub(crate) fn me(&self) -> ProcId {
        match self {
            Self::Real(engine) => engine.me(),
            Self::Simulated(process) => process.me(),
        }
    }

    /// Runs `step` on the node and carries out its effects.
    pub(crate) fn with_node<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        match self {
            Self::Real(engine) => engine.with_node(step),
            Self::Simulated(process) => process.with_node(step),
        }
    }

    /// Like [`EngineBackend::with_node`], after advancing the time of the node.
    pub(crate) fn with_node_now<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        match self {
            Self::Real(engine) => engine.with_node_now(step),
            Self::Simulated(process) => process.with_node(step),
        }
    }

    pub(crate) fn clock(&self) -> Duration {
        match self {
            Self::Real(engine) => Duration::from_nanos(engine.clock_ns()),
            Self::Simulated(process) => process.now(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Real(engine) => engine.close(),
            Self::Simulated(process) => process.with_node(Node::end_all),
        }
    }

    /// Whether this process is a fork of the process that the engine belongs to.
    pub(crate) fn is_aborted(&self) -> bool {
        match self {
            Self::Real(engine) => engine.is_aborted(),
            Self::Simulated(_) => false,
        }
    }

    pub(crate) fn abort(&self) {
        if let Self::Real(engine) = self {
            engine.abort();
        }
    }

    pub(crate) fn proc_died(&self, proc: ProcId, incarnation: u32, detail: Bytes) {
        match self {
            Self::Real(engine) => engine.proc_died(proc, incarnation, detail),
            Self::Simulated(process) => process.proc_died(proc, incarnation, detail),
        }
    }

    pub(crate) fn take_replies(&self, reply_port: PortId, out: &mut Vec<Reply>) -> Progress {
        match self {
            Self::Real(engine) => engine.take_replies(reply_port, out),
            Self::Simulated(process) => process.take_replies(reply_port, out),
        }
    }

    pub(crate) fn notify_loop(&self, port: PortId, queue: Weak<ReadyQueue>) {
        match self {
            Self::Real(engine) => engine.set_waiter(port, Waiter::Loop(queue)),
            Self::Simulated(process) => process.notify_loop(port, queue),
        }
    }

    pub(crate) fn clear_waiter(&self, port: PortId) {
        match self {
            Self::Real(engine) => engine.clear_waiter(port),
            Self::Simulated(process) => process.clear_waiters(port),
        }
    }

    pub(crate) fn forget(&self, reply_port: PortId) {
        match self {
            Self::Real(engine) => engine.forget(reply_port),
            Self::Simulated(process) => process.end_wait(reply_port, Node::forget),
        }
    }

    pub(crate) fn abandon(&self, reply_port: PortId) {
        match self {
            Self::Real(engine) => engine.abandon(reply_port),
            Self::Simulated(process) => process.end_wait(reply_port, Node::abandon),
        }
    }
}
