//! The IO edge of one process: a [`Node`] behind a lock, sockets, and waiting threads.
//!
//! A thread that waits reads the connections itself. It becomes the *leader* if there is none: it
//! sleeps in `epoll_wait` on the connections, so the frame that it waits for wakes this thread and
//! no other. The IO thread sleeps on a second epoll set with the same connections; the kernel wakes
//! one sleeper for each event (`EPOLLEXCLUSIVE`), the leader first. If no other calls are in
//! progress, a call therefore crosses no thread boundary, and frames do not wait long while the
//! leader is busy.
//!
//! # Layout
//! - `waiting`: threads that wait; [`parker`] and `poller`: the primitives on which they sleep
//! - [`ready`]: wake-up of an event loop instead of a thread; [`loop_reader`]: loops that read
//! - `io_thread`: the IO thread
//! - `deferred`: execution of the node's effects without its lock
//! - [`wire`]: one socket; `links`: the sockets of the node
//! - `local_links`: connections to other processes of this host
//! - [`listener`], [`channel`], [`dial`], `gateway`, `remote_links`: connections to other hosts
//! - `acknowledgement`: the last acknowledgements from the kernels of other hosts
//! - `direct_receives`: direct receive of messages into shared memory
//! - `unidentified_links`: connections within this host whose peer is not identified yet
//! - `shortage`: handling of a lack of descriptors

mod acknowledgement;
pub mod channel;
mod deferred_effects;
pub mod dial;
mod direct_receives;
mod gateway;
mod io_thread;
mod links;
pub mod listener;
mod local_links;
pub mod loop_reader;
pub mod parker;
mod poller;
pub mod ready;
mod remote_links;
mod shortage;
mod unidentified_links;
mod waiting;
pub mod wire;

pub use waiting::Waiter;

use crate::hash::FastMap;
use crate::node::{LinkId, Node, NodeConfig};
use acknowledgement::Acknowledgements;
use bytes::Bytes;
use deferred_effects::DeferredEffects;
use dial::Route;
use direct_receives::DirectReceives;
use local_links::socket_path;
use mesh_trust::Trust;
use mesh_wire::id::{HostId, PortId, ProcId};
use parker::Parker;
use poller::Poller;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};
use unidentified_links::UnidentifiedLinks;
use wire::{Descriptors, Wire, lock};

/// The interval at which an exiting process checks whether everything it sent is written.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The state that the lock protects.
struct Shared {
    node: Node,
    wires: FastMap<LinkId, Arc<Wire>>,
    waiters: FastMap<PortId, Waiter>,
    /// Threads that wait for credit or for capacity at a receiver.
    credit_waiters: Vec<Arc<Parker>>,
    redials: BinaryHeap<Reverse<(Instant, ProcId)>>,
    /// The time of the next sweep for idle shared memory; `None` while none is idle.
    sweep_at: Option<Instant>,
    unidentified: UnidentifiedLinks,
    /// Until when no connection is accepted or opened, because of a lack of descriptors.
    shortage_ends_at: Option<Instant>,
}

/// The reason why a process cannot be reached any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// The agent of its host has exited.
    Agent,
    /// Other code in the process has closed the descriptors that this engine waits on.
    Descriptors,
}

/// A running process of a job.
pub struct Engine {
    shared: Mutex<Shared>,
    lead: Poller,
    io: Poller,
    is_led: AtomicBool,
    /// When a leader last read the connections, in microseconds since `epoch`.
    led_until_us: AtomicU64,
    /// Number of event loops that watch the connections.
    loop_count: AtomicUsize,
    is_closed: AtomicBool,
    /// Whether this process is a fork of the process that the engine belongs to.
    is_aborted: AtomicBool,
    epoch: Instant,
    me: ProcId,
    this: Weak<Self>,
    /// Routes to the other hosts that this process may connect to, with their credentials.
    routes: Mutex<FastMap<HostId, (Route, Option<Trust>)>>,
    /// The default credentials for other hosts; `None` if no connection leaves the machine.
    trust: Mutex<Option<Trust>>,
    acknowledgements: Acknowledgements,
    dir: PathBuf,
    /// The listener for processes of this host, after [`Engine::listen`].
    listener: OnceLock<UnixListener>,
    descriptors: Arc<dyn Descriptors>,
    direct_receives: DirectReceives,
    on_cut_off: Box<dyn Fn(CutOff) + Send + Sync>,
}

impl Engine {
    /// Starts a process and the IO thread that reads its connections.
    ///
    /// `dir` is the directory in which it will [`Engine::listen`]. Times are relative to `epoch`.
    /// `on_cut_off` is called when this process cannot be reached any more.
    ///
    /// # Errors
    /// If the machine has no descriptors or threads left.
    pub fn start(
        config: NodeConfig,
        dir: PathBuf,
        descriptors: Arc<dyn Descriptors>,
        on_cut_off: Box<dyn Fn(CutOff) + Send + Sync>,
        epoch: Instant,
    ) -> io::Result<Arc<Self>> {
        let me = config.me;
        let mut node = Node::new(config);
        node.enable_direct_receive();
        let shared = Shared {
            node,
            wires: FastMap::default(),
            waiters: FastMap::default(),
            credit_waiters: Vec::new(),
            redials: BinaryHeap::new(),
            sweep_at: None,
            unidentified: UnidentifiedLinks::default(),
            shortage_ends_at: None,
        };
        let (lead, io) = (Poller::new()?, Poller::new()?);
        let engine = Arc::new_cyclic(|this| Self {
            shared: Mutex::new(shared),
            lead,
            io,
            is_led: AtomicBool::new(false),
            led_until_us: AtomicU64::new(0),
            loop_count: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            is_aborted: AtomicBool::new(false),
            epoch,
            me,
            this: Weak::clone(this),
            routes: Mutex::default(),
            trust: Mutex::default(),
            acknowledgements: Acknowledgements::default(),
            dir,
            listener: OnceLock::new(),
            descriptors,
            direct_receives: DirectReceives::default(),
            on_cut_off,
        });
        let io_engine = Arc::clone(&engine);
        std::thread::Builder::new()
            .name("mesh-io".into())
            .stack_size(256 << 10)
            .spawn(move || io_engine.run_io())?;
        Ok(engine)
    }

    /// Returns the id of this process.
    pub fn me(&self) -> ProcId {
        self.me
    }

    /// Disables the engine in a forked child.
    ///
    /// The connections belong to the parent, and its threads, which may hold locks here, do not
    /// exist in the child. Nothing of the engine may be used afterwards.
    pub fn abort(&self) {
        self.is_aborted.store(true, Ordering::SeqCst);
    }

    /// Whether this process is a fork of the process that the engine belongs to.
    pub fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Relaxed)
    }

    /// Creates a parker for one thread.
    pub fn parker(&self) -> Arc<Parker> {
        Arc::new(Parker::new(Arc::clone(&self.lead.waker)))
    }

    /// Stops the IO thread, closes every connection, and ends all waits for replies and messages.
    pub fn close(&self) {
        self.with_node(Node::end_all);
        self.is_closed.store(true, Ordering::SeqCst);
        self.io.waker.wake();
        // It does not matter whether the file still existed.
        let _ = std::fs::remove_file(socket_path(&self.dir, self.me));
    }

    /// Reports the death of a process of this host, after reading everything that it has written.
    pub fn proc_died(&self, proc: ProcId, incarnation: u32, detail: Bytes) {
        let link = lock(&self.shared).node.link_to(proc);
        if let Some(link) = link {
            self.read_link(link, None);
        }
        self.with_node(|node| node.proc_died(proc, incarnation, detail));
    }

    /// Waits until everything that was sent is written; called by a process that is about to exit.
    pub fn drain(&self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let (wires, has_pending) = {
                let shared = lock(&self.shared);
                let wires: Vec<_> = shared.wires.values().cloned().collect();
                (wires, shared.node.has_pending_frames())
            };
            let is_drained = !has_pending && wires.iter().all(|wire| wire.is_drained());
            if is_drained || Instant::now() >= until {
                return;
            }
            std::thread::sleep(DRAIN_CHECK_INTERVAL);
        }
    }

    /// Locks the node, and sets its time if events are recorded.
    fn enter(&self) -> MutexGuard<'_, Shared> {
        let mut shared = lock(&self.shared);
        if shared.node.events().is_on() {
            let now = self.epoch.elapsed();
            shared.node.set_now(now);
        }
        shared
    }

    /// Returns the time with which events are stamped, in nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs `step` on the node and carries out its effects.
    pub fn with_node<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        let mut deferred = DeferredEffects::default();
        let result = {
            let mut shared = self.enter();
            let result = step(&mut shared.node);
            shared.collect(&mut deferred, &*self.descriptors);
            result
        };
        self.finish(deferred);
        result
    }

    /// Like [`Engine::with_node`], after advancing the time of the node; for calls with a deadline.
    pub fn with_node_now<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        let now = self.epoch.elapsed();
        let result = self.with_node(|node| {
            node.advance(now);
            step(node)
        });
        self.io.waker.wake();
        result
    }
}
