//! One process for real: a [`Node`] behind a lock, unix sockets, and the threads that wait.
//!
//! Who has nothing better to do reads the links itself. A thread that waits becomes the *leader*
//! when there is none: it sleeps in `epoll_wait` on the links, so the frame that it waits for wakes
//! it and no other. The IO thread sleeps on a second epoll with the same links; the kernel wakes
//! one sleeper for each event (`EPOLLEXCLUSIVE`), the leader first. So a quiet call crosses no
//! thread boundary, and nothing waits long when the leader is busy with what it got.
//!
//! # Layout
//! - `waiting`: threads that wait, [`parker`], `poller`: where they sleep;
//! - [`ready`]: waking an event loop instead of a thread;
//! - `tending`: the IO thread;
//! - `chores`: what is done for the node without its lock;
//! - [`wire`]: one socket, `links`: those of the node;
//! - `here`: links to other processes of this host;
//! - [`gate`], [`channel`], [`dial`], `gateway`, `afar`: links to other hosts;
//! - `acknowledgement`: what the kernels of other hosts have acknowledged;
//! - `landings`: messages that are written to shared memory as they come;
//! - `strangers`: links of this host whose other end is not known yet.

mod acknowledgement;
mod afar;
pub mod channel;
mod chores;
pub mod dial;
pub mod gate;
mod gateway;
mod here;
mod landings;
mod links;
pub mod parker;
mod poller;
pub mod ready;
mod shortage;
mod strangers;
mod tending;
mod waiting;
pub mod wire;

pub use waiting::Waiter;

use crate::hash::FastMap;
use crate::node::{LinkId, Node, NodeConfig};
use acknowledgement::Acknowledgements;
use bytes::Bytes;
use chores::Chores;
use dial::Route;
use here::socket_path;
use landings::Landings;
use mesh_trust::Trust;
use mesh_wire::id::{HostId, PortId, ProcId};
use parker::Parker;
use poller::Poller;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};
use strangers::Strangers;
use wire::{Descriptors, Wire, lock};

/// How often a process that leaves looks whether all that it sent is written.
const DRAIN_LOOK: Duration = Duration::from_millis(1);

/// What the lock protects.
struct Shared {
    node: Node,
    wires: FastMap<LinkId, Arc<Wire>>,
    waiters: FastMap<PortId, Waiter>,
    /// Threads that wait for room at a receiver.
    credit_waiters: Vec<Arc<Parker>>,
    redials: BinaryHeap<Reverse<(Instant, ProcId)>>,
    /// When to look for shared memory that is not used any more; never while all is.
    sweep_at: Option<Instant>,
    strangers: Strangers,
    /// Until when nothing is accepted or dialled, for want of descriptors.
    shortage_ends_at: Option<Instant>,
}

/// Why nobody can reach a process any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOff {
    /// The agent of its host has ended.
    Agent,
    /// Other code of the process has closed the descriptors that this engine waits on.
    Descriptors,
}

/// One process of a job, running.
pub struct Engine {
    shared: Mutex<Shared>,
    lead: Poller,
    io: Poller,
    is_led: AtomicBool,
    /// When the links were last led, in microseconds since `epoch`.
    led_until_us: AtomicU64,
    is_closed: AtomicBool,
    /// Whether this process is a fork of the one that the engine belongs to.
    is_forsaken: AtomicBool,
    epoch: Instant,
    me: ProcId,
    this: Weak<Self>,
    /// Where other hosts listen, those that this one may call.
    routes: Mutex<FastMap<HostId, (Route, Option<Trust>)>>,
    /// What this process proves itself with there; nothing where no link leaves the machine.
    trust: Mutex<Option<Trust>>,
    acknowledgements: Acknowledgements,
    dir: PathBuf,
    /// Where processes of this host call, once somebody may.
    listener: OnceLock<UnixListener>,
    descriptors: Arc<dyn Descriptors>,
    landings: Landings,
    on_cut_off: Box<dyn Fn(CutOff) + Send + Sync>,
}

impl Engine {
    /// Starts a process, which reads its links from a thread of its own; `dir` is where it will
    /// [`Engine::listen`]. Times count from `epoch`. `on_cut_off` is called when nobody can reach
    /// this process any more.
    ///
    /// # Errors
    /// When the machine has no descriptors or threads left.
    pub fn start(
        config: NodeConfig,
        dir: PathBuf,
        descriptors: Arc<dyn Descriptors>,
        on_cut_off: Box<dyn Fn(CutOff) + Send + Sync>,
        epoch: Instant,
    ) -> io::Result<Arc<Self>> {
        let me = config.me;
        let mut node = Node::new(config);
        node.set_lands();
        let shared = Shared {
            node,
            wires: FastMap::default(),
            waiters: FastMap::default(),
            credit_waiters: Vec::new(),
            redials: BinaryHeap::new(),
            sweep_at: None,
            strangers: Strangers::default(),
            shortage_ends_at: None,
        };
        let (lead, io) = (Poller::new()?, Poller::new()?);
        let engine = Arc::new_cyclic(|this| Self {
            shared: Mutex::new(shared),
            lead,
            io,
            is_led: AtomicBool::new(false),
            led_until_us: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            is_forsaken: AtomicBool::new(false),
            epoch,
            me,
            this: Weak::clone(this),
            routes: Mutex::default(),
            trust: Mutex::default(),
            acknowledgements: Acknowledgements::default(),
            dir,
            listener: OnceLock::new(),
            descriptors,
            landings: Landings::default(),
            on_cut_off,
        });
        let io_engine = Arc::clone(&engine);
        std::thread::Builder::new()
            .name("mesh-io".into())
            .stack_size(256 << 10)
            .spawn(move || io_engine.run_io())?;
        Ok(engine)
    }

    /// The process.
    pub fn me(&self) -> ProcId {
        self.me
    }

    /// To be called in a forked child: the links are the parent's, and its threads, which may hold
    /// locks here, are not in the child. Nothing of the engine is to be used any more.
    pub fn forsake(&self) {
        self.is_forsaken.store(true, Ordering::SeqCst);
    }

    /// Whether this process is a fork of the one that the engine belongs to.
    pub fn is_forsaken(&self) -> bool {
        self.is_forsaken.load(Ordering::Relaxed)
    }

    /// A place to sleep for one thread.
    pub fn parker(&self) -> Arc<Parker> {
        Arc::new(Parker::new(Arc::clone(&self.lead.bell)))
    }

    /// Ends the IO thread and closes every link; who waits for answers or messages is told.
    pub fn close(&self) {
        self.with_node(Node::end_all);
        self.is_closed.store(true, Ordering::SeqCst);
        self.io.bell.ring();
        // Who closes need not care whether the file was still there.
        let _ = std::fs::remove_file(socket_path(&self.dir, self.me));
    }

    /// The host reports the death of one of its processes. What it wrote before comes first.
    pub fn proc_died(&self, proc: ProcId, incarnation: u32, detail: Bytes) {
        let link = lock(&self.shared).node.link_to(proc);
        if let Some(link) = link {
            self.read_link(link, None);
        }
        self.with_node(|node| node.proc_died(proc, incarnation, detail));
    }

    /// Waits until all that was sent is written, for a process that is about to leave.
    pub fn drain(&self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let (wires, is_held) = {
                let shared = lock(&self.shared);
                let wires: Vec<_> = shared.wires.values().cloned().collect();
                (wires, shared.node.holds_frames())
            };
            let is_drained = !is_held && wires.iter().all(|wire| wire.is_drained());
            if is_drained || Instant::now() >= until {
                return;
            }
            std::thread::sleep(DRAIN_LOOK);
        }
    }

    /// Locks the node; tells it the time when somebody wants to know when things happen.
    fn enter(&self) -> MutexGuard<'_, Shared> {
        let mut shared = lock(&self.shared);
        if shared.node.events().is_on() {
            let now = self.epoch.elapsed();
            shared.node.set_now(now);
        }
        shared
    }

    /// The time that events are stamped with, in nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Runs `step` on the node and does what it asks for.
    pub fn with_node<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        let mut chores = Chores::default();
        let result = {
            let mut shared = self.enter();
            let result = step(&mut shared.node);
            shared.collect(&mut chores, &*self.descriptors);
            result
        };
        self.finish(chores);
        result
    }

    /// As [`Engine::with_node`], after telling the node what time it is; for calls with a deadline.
    pub fn with_node_now<T>(&self, step: impl FnOnce(&mut Node) -> T) -> T {
        let now = self.epoch.elapsed();
        let result = self.with_node(|node| {
            node.advance(now);
            step(node)
        });
        self.io.bell.ring();
        result
    }
}
