//! One process for real: a [`Node`] behind a lock, unix sockets, and the threads that wait.
//!
//! Who has nothing better to do reads the links itself. A thread that waits becomes the *leader*
//! when there is none: it sleeps in `epoll_wait` on the links, so the frame that it waits for wakes
//! it and no other. The IO thread sleeps on a second epoll with the same links; the kernel wakes
//! one sleeper for each event (`EPOLLEXCLUSIVE`), the leader first. So a quiet call crosses no
//! thread boundary, and nothing waits long when the leader is busy with what it got.
//!
//! # Layout
//! - [`parker`]: where a thread sleeps;
//! - [`wire`]: one socket;
//! - [`ready`]: waking an event loop instead of a thread;
//! - `here`: links to other processes of this host;
//! - [`gate`], [`channel`], [`dial`], `relay`, `afar`, `neighbour`: links to other hosts;
//! - `landings`: messages that are written to shared memory as they come;
//! - `strangers`: links of this host whose other end is not known yet.

mod afar;
pub mod channel;
pub mod dial;
pub mod gate;
mod here;
mod landings;
mod neighbour;
pub mod parker;
pub mod ready;
mod relay;
mod strangers;
pub mod wire;

use crate::hash::FastMap;
use crate::mailbox::Closed;
use crate::node::{Answer, BulkId, Effect, LinkId, Node, NodeConfig, Progress};
use bytes::Bytes;
use dial::Route;
use here::socket_path;
use landings::{Landings, Piece};
use mesh_trust::Trust;
use mesh_wire::frame::Frame;
use mesh_wire::id::{HostId, PortId, ProcId};
use parker::{Bell, Parker, Wake, timespec};
use ready::ReadyQueue;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::hash_map::Entry;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};
use strangers::Strangers;
use wire::{Descriptors, Reach, Wire, Written, lock};

/// Token of a bell in an epoll set.
const BELL: u64 = u64::MAX;
/// Token of the listener.
const LISTENER: u64 = u64::MAX - 1;
/// Set in the token of a wire that waits to be writable.
const WRITABLE: u64 = 1 << 62;
/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// How long the IO thread leaves the links to a thread that has just led them: it will most likely
/// wait again at once, and then reads what came meanwhile without any hand-over.
const HEAD_START: Duration = Duration::from_micros(500);
/// How often a process that leaves looks whether all that it sent is written.
const DRAIN_LOOK: Duration = Duration::from_millis(1);
/// How often idle shared memory is looked for: what was idle for all of it is given back.
const SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// How long the first thread sleeps before it looks for signals again: one may slip in between the
/// last look and the sleep.
const SIGNAL_SLICE: Duration = Duration::from_millis(200);

/// Who is woken when something comes in on a port.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// A sleeping thread.
    Thread(Arc<Parker>),
    /// An event loop, as long as there is one.
    Loop(Weak<ReadyQueue>),
    /// Several of them: all are woken, and who finds nothing sleeps on.
    Many(Vec<Waiter>),
}

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
}

/// What is left to do once the lock is released.
#[derive(Default)]
struct Chores {
    flush: Vec<(LinkId, Arc<Wire>)>,
    wake: Vec<(PortId, Waiter)>,
    credited: Vec<Arc<Parker>>,
    dial: Vec<ProcId>,
    closed: Vec<Arc<Wire>>,
    released: Vec<(ProcId, u32, u32)>,
    buried: Vec<ProcId>,
    pieces: Vec<Piece>,
    forsaken: Vec<BulkId>,
    has_timer: bool,
}

/// The sleepers' side of a set of links.
struct Poller {
    epoll: OwnedFd,
    bell: Arc<Bell>,
}

impl Poller {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Arc::new(Bell::new()?);
        epoll::add(&epoll, bell.as_fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, bell })
    }

    fn add(&self, source: impl AsFd, token: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        Ok(epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), flags)?)
    }

    /// Sleeps until something happens; returns the tokens.
    fn sleep(&self, left: Option<Duration>, tokens: &mut Vec<u64>) -> Result<(), Errno> {
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        let left = left.map(timespec);
        let (events, _) = epoll::wait(&self.epoll, &mut events, left.as_ref())?;
        tokens.extend(events.iter().map(|event| event.data.u64()));
        Ok(())
    }
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
    epoch: Instant,
    me: ProcId,
    this: Weak<Self>,
    /// Where other hosts listen, those that this one may call.
    routes: Mutex<FastMap<HostId, Route>>,
    /// What this process proves itself with there; nothing where no link leaves the machine.
    trust: Mutex<Option<Trust>>,
    dir: PathBuf,
    /// Where processes of this host call, once somebody may.
    listener: OnceLock<UnixListener>,
    descriptors: Arc<dyn Descriptors>,
    landings: Landings,
    /// Called when the agent of this host cannot be reached any more.
    on_orphaned: Box<dyn Fn() + Send + Sync>,
}

impl Engine {
    /// Starts a process, which reads its links from a thread of its own; `dir` is where it will
    /// [`Engine::listen`]. Times count from `epoch`.
    ///
    /// # Errors
    /// When the machine has no descriptors or threads left.
    pub fn start(
        config: NodeConfig,
        dir: PathBuf,
        descriptors: Arc<dyn Descriptors>,
        on_orphaned: Box<dyn Fn() + Send + Sync>,
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
        };
        let (lead, io) = (Poller::new()?, Poller::new()?);
        let engine = Arc::new_cyclic(|this| Self {
            shared: Mutex::new(shared),
            lead,
            io,
            is_led: AtomicBool::new(false),
            led_until_us: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            epoch,
            me,
            this: Weak::clone(this),
            routes: Mutex::default(),
            trust: Mutex::default(),
            dir,
            listener: OnceLock::new(),
            descriptors,
            landings: Landings::default(),
            on_orphaned,
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

    /// Wakes `waiter` whenever something comes in on `port`, beginning now.
    pub fn set_waiter(&self, port: PortId, waiter: Waiter) {
        let is_ready = {
            let mut shared = lock(&self.shared);
            shared.add_waiter(port, waiter.clone());
            shared.node.is_ready(port)
        };
        if is_ready {
            waiter.wake(port);
        }
    }

    /// Wakes nobody for `port` any more.
    pub fn clear_waiter(&self, port: PortId) {
        lock(&self.shared).waiters.remove(&port);
    }

    /// Waits for messages and takes up to `max` of them.
    ///
    /// Returns `Ok(false)` when the time is over or a signal came: the caller looks and comes back.
    ///
    /// # Errors
    /// The reason when the port takes no more messages.
    pub fn receive(
        &self,
        port: PortId,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        max: usize,
        out: &mut Vec<Frame>,
    ) -> Result<bool, Closed> {
        loop {
            let mut chores = Chores::default();
            {
                let mut shared = self.enter();
                shared.node.take_messages(port, max, out)?;
                if out.is_empty() {
                    shared.add_waiter(port, Waiter::Thread(Arc::clone(parker)));
                }
                shared.collect(&mut chores, &*self.descriptors);
            }
            self.finish(chores);
            if !out.is_empty() {
                return Ok(true);
            }
            if matches!(self.sleep(parker, until), Wake::TimedOut | Wake::Interrupted) {
                return Ok(false);
            }
        }
    }

    /// Waits for the answers of a call: all of them, or any when it is a stream.
    ///
    /// Returns nothing when the time is over or a signal came; the call goes on.
    pub fn wait_answers(
        &self,
        reply: PortId,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        out: &mut Vec<Answer>,
    ) -> Option<Progress> {
        loop {
            {
                let mut shared = lock(&self.shared);
                if shared.node.is_ready(reply) {
                    let progress = shared.node.take_answers(reply, out);
                    if progress == Progress::Complete {
                        shared.waiters.remove(&reply);
                    }
                    return Some(progress);
                }
                shared.add_waiter(reply, Waiter::Thread(Arc::clone(parker)));
            }
            if matches!(self.sleep(parker, until), Wake::TimedOut | Wake::Interrupted) {
                return None;
            }
        }
    }

    /// Waits until something has come in on a port, without taking it.
    ///
    /// What has come in since [`Engine::set_waiter`] with this thread counts, even if another one
    /// has taken it already. May return early: the time may be over, a signal may have come. The
    /// caller looks and calls again.
    pub fn wait_ready(&self, port: PortId, parker: &Arc<Parker>, until: Option<Instant>) {
        {
            let mut shared = lock(&self.shared);
            if shared.node.is_ready(port) {
                return;
            }
            shared.add_waiter(port, Waiter::Thread(Arc::clone(parker)));
        }
        self.sleep(parker, until);
    }

    /// Moves the answers that have come into `out`; nobody is woken any more once all have.
    pub fn take_answers(&self, reply: PortId, out: &mut Vec<Answer>) -> Progress {
        let mut shared = lock(&self.shared);
        let progress = shared.node.take_answers(reply, out);
        if progress == Progress::Complete {
            shared.waiters.remove(&reply);
        }
        progress
    }

    /// Waits no longer for the answers of a call, if any are missing.
    pub fn forget(&self, reply: PortId) {
        let mut chores = Chores::default();
        {
            let mut shared = lock(&self.shared);
            shared.waiters.remove(&reply);
            shared.node.forget(reply);
            if !shared.node.has_effects() {
                return;
            }
            shared.collect(&mut chores, &*self.descriptors);
        }
        self.finish(chores);
    }

    /// Sleeps until a receiver may have room again; `false` when the time is over or a signal came.
    pub fn wait_credit(
        &self,
        parker: &Arc<Parker>,
        until: Option<Instant>,
        has_room: impl Fn(&Node) -> bool,
    ) -> bool {
        {
            let mut shared = lock(&self.shared);
            if has_room(&shared.node) {
                return true;
            }
            shared.credit_waiters.push(Arc::clone(parker));
        }
        !matches!(self.sleep(parker, until), Wake::TimedOut | Wake::Interrupted)
    }

    /// Sleeps until woken, reading the links meanwhile if nobody else does.
    fn sleep(&self, parker: &Arc<Parker>, until: Option<Instant>) -> Wake {
        let slice = if parker.takes_signals() {
            let slice = Instant::now() + SIGNAL_SLICE;
            Some(until.map_or(slice, |until| until.min(slice)))
        } else {
            until
        };
        let is_first =
            self.is_led.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if !is_first {
            return parker.park(slice);
        }
        let woken = self.lead_until(parker, slice);
        self.led_until_us.store(self.micros(), Ordering::Relaxed);
        self.is_led.store(false, Ordering::SeqCst);
        match woken {
            Wake::HandedOver => parker.park(slice),
            woken => woken,
        }
    }

    fn lead_until(&self, parker: &Arc<Parker>, until: Option<Instant>) -> Wake {
        let mut tokens = Vec::new();
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Wake::TimedOut;
            }
            if !parker.lead() {
                return Wake::Notified;
            }
            tokens.clear();
            let slept = self.lead.sleep(left, &mut tokens);
            let mut is_woken = parker.get_up();
            let mut woke_others = false;
            for token in &tokens {
                match *token {
                    BELL => self.lead.bell.silence(),
                    token => woke_others |= self.read_link(LinkId(token as u32), Some(parker)),
                }
            }
            is_woken |= parker.get_up();
            if is_woken {
                return Wake::Notified;
            }
            if woke_others {
                return Wake::HandedOver;
            }
            if slept == Err(Errno::INTR) {
                return Wake::Interrupted;
            }
        }
    }

    /// Reads one link; returns whether threads other than `me` were woken.
    fn read_link(&self, link: LinkId, me: Option<&Arc<Parker>>) -> bool {
        let Some(wire) = lock(&self.shared).wires.get(&link).cloned() else { return false };
        let mut woke_others = false;
        let end = wire.read(&*self.descriptors, |frames| {
            let mut chores = Chores::default();
            {
                let mut shared = self.enter();
                if wire.reach() == Reach::Afar {
                    shared.node.heard(link);
                }
                for frame in frames.drain(..) {
                    shared.node.receive(link, frame);
                }
                shared.collect(&mut chores, &*self.descriptors);
            }
            woke_others |= chores.wake.iter().any(|(_, waiter)| waiter.is_other(me));
            self.finish(chores);
        });
        if end.is_err() {
            self.drop_link(link, &wire);
        }
        woke_others
    }

    fn drop_link(&self, link: LinkId, wire: &Wire) {
        if lock(&self.shared).wires.remove(&link).is_none() {
            return;
        }
        self.unwatch(wire);
        self.with_node(|node| node.link_down(link));
    }

    /// Takes a wire out of both epoll sets; the socket closes with its last user.
    fn unwatch(&self, wire: &Wire) {
        // Either may have been removed by another thread that saw the same end.
        let _ = epoll::delete(&self.lead.epoll, wire.stream());
        if let Some(watch) = wire.unblock() {
            let _ = epoll::delete(&self.io.epoll, &watch);
        }
        let _ = epoll::delete(&self.io.epoll, wire.stream());
        wire.shut();
    }

    /// Does what a step of the node asked for, without the lock.
    fn finish(&self, chores: Chores) {
        for (link, wire) in &chores.flush {
            self.flush(*link, wire);
        }
        for (port, waiter) in &chores.wake {
            waiter.wake(*port);
        }
        for parker in &chores.credited {
            parker.unpark();
        }
        for wire in &chores.closed {
            self.unwatch(wire);
        }
        for (reader, segment, generation) in &chores.released {
            self.descriptors.released(*reader, *segment, *generation);
        }
        for proc in &chores.buried {
            self.descriptors.buried(*proc);
        }
        for piece in chores.pieces {
            self.land(piece);
        }
        for id in chores.forsaken {
            self.landings.forsake(id);
        }
        for peer in &chores.dial {
            self.connect(*peer);
        }
        if chores.has_timer {
            self.io.bell.ring();
        }
    }

    fn flush(&self, link: LinkId, wire: &Arc<Wire>) {
        match wire.flush(&*self.descriptors) {
            Written::All | Written::Elsewhere => {}
            Written::Broken => self.drop_link(link, wire),
            Written::Blocked => {
                let token = epoll::EventData::new_u64(u64::from(link.0) | WRITABLE);
                let flags = epoll::EventFlags::OUT | epoll::EventFlags::ONESHOT;
                let Ok(copy) = rustix::io::fcntl_dupfd_cloexec(wire.stream(), 3) else {
                    return self.drop_link(link, wire);
                };
                let is_watched = epoll::add(&self.io.epoll, &copy, token, flags);
                wire.set_watch(copy);
                if is_watched.is_err() {
                    self.drop_link(link, wire);
                }
            }
        }
    }

    fn connect(&self, peer: ProcId) {
        if peer.host != self.me.host {
            return self.connect_afar(peer);
        }
        let stream = UnixStream::connect(socket_path(&self.dir, peer));
        match stream.and_then(Wire::here).map(Arc::new) {
            Ok(wire) => drop(self.add_wire(wire, |node| node.connected(peer))),
            Err(_) if peer == agent_of(self.me.host) => (self.on_orphaned)(),
            Err(_) => self.with_node(|node| node.connect_failed(peer)),
        }
    }

    /// Makes a wire known to the node and to both sleepers, the leader first.
    fn add_wire(&self, wire: Arc<Wire>, introduce: impl FnOnce(&mut Node) -> LinkId) -> LinkId {
        let mut chores = Chores::default();
        let link = {
            let mut shared = lock(&self.shared);
            let link = introduce(&mut shared.node);
            shared.wires.insert(link, Arc::clone(&wire));
            shared.collect(&mut chores, &*self.descriptors);
            link
        };
        let token = u64::from(link.0);
        let is_watched =
            self.lead.add(wire.stream(), token).and_then(|()| self.io.add(wire.stream(), token));
        self.finish(chores);
        if is_watched.is_err() {
            self.drop_link(link, &wire);
        }
        link
    }

    fn run_io(&self) {
        let mut tokens = Vec::new();
        while !self.is_closed.load(Ordering::SeqCst) {
            let left = self.run_timers();
            tokens.clear();
            // An interrupted sleep is a short one.
            let _ = self.io.sleep(left, &mut tokens);
            if self.is_led_now() && tokens.iter().any(|token| *token < WRITABLE) {
                std::thread::sleep(HEAD_START);
                tokens.retain(|token| *token >= WRITABLE);
            }
            for token in &tokens {
                match *token {
                    BELL => self.io.bell.silence(),
                    LISTENER => self.accept(),
                    token if token & WRITABLE != 0 => self.writable(LinkId(token as u32)),
                    token => {
                        self.read_link(LinkId(token as u32), None);
                    }
                }
            }
        }
        let wires: Vec<_> = lock(&self.shared).wires.drain().map(|(_, wire)| wire).collect();
        for wire in wires {
            self.unwatch(&wire);
        }
    }

    /// Whether a thread leads the links, or did a moment ago.
    fn is_led_now(&self) -> bool {
        let since = self.micros().saturating_sub(self.led_until_us.load(Ordering::Relaxed));
        self.is_led.load(Ordering::SeqCst) || Duration::from_micros(since) < HEAD_START
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn writable(&self, link: LinkId) {
        let Some(wire) = lock(&self.shared).wires.get(&link).cloned() else { return };
        if let Some(watch) = wire.unblock() {
            // It is there: this event came from it.
            let _ = epoll::delete(&self.io.epoll, &watch);
        }
        self.flush(link, &wire);
    }

    /// Lets time pass; returns how long the IO thread may sleep.
    fn run_timers(&self) -> Option<Duration> {
        let now = Instant::now();
        self.with_node(|node| node.advance(now - self.epoch));
        self.see_off_strangers(now);
        let mut due = Vec::new();
        let left = {
            let mut shared = lock(&self.shared);
            while let Some(&Reverse((at, peer))) = shared.redials.peek() {
                if at > now {
                    break;
                }
                due.push(peer);
                shared.redials.pop();
            }
            let is_sweep_due = shared.sweep_at.is_some_and(|at| at <= now);
            if is_sweep_due {
                shared.sweep_at = self.descriptors.sweep().then(|| now + SWEEP_PERIOD);
            }
            let sweep = shared.sweep_at.map(|at| at - now);
            let stranger = shared.strangers.next_due().map(|at| at - now);
            let redial = shared.redials.peek().map(|Reverse((at, _))| *at - now);
            let deadline = shared.node.next_deadline();
            let deadline = deadline.map(|at| at.saturating_sub(now - self.epoch));
            [redial, deadline, sweep, stranger].into_iter().flatten().min()
        };
        let left = if due.is_empty() { left } else { Some(Duration::ZERO) };
        for peer in due {
            self.connect(peer);
        }
        left
    }
}

impl Shared {
    /// Adds someone to be woken for a port, beside those who are already.
    fn add_waiter(&mut self, port: PortId, waiter: Waiter) {
        match self.waiters.entry(port) {
            Entry::Vacant(entry) => {
                entry.insert(waiter);
            }
            Entry::Occupied(mut entry) => entry.get_mut().join(waiter),
        }
    }

    /// Turns the effects of the node into chores; frames are queued here, in the node's order.
    fn collect(&mut self, chores: &mut Chores, descriptors: &dyn Descriptors) {
        chores.has_timer |= self.node.is_untimed();
        for effect in self.node.effects() {
            match effect {
                Effect::Transmit { link, frame } => {
                    let Some(wire) = self.wires.get(&link) else { continue };
                    wire.push(frame);
                    if chores.flush.last().is_none_or(|(last, _)| *last != link) {
                        chores.flush.push((link, Arc::clone(wire)));
                    }
                }
                Effect::Ready(port) => {
                    if let Some(waiter) = self.waiters.get(&port)
                        && chores.wake.last().is_none_or(|(last, _)| *last != port)
                    {
                        chores.wake.push((port, waiter.clone()));
                    }
                }
                Effect::Credited => chores.credited.append(&mut self.credit_waiters),
                Effect::Connect { peer, after } if after.is_zero() => chores.dial.push(peer),
                Effect::Connect { peer, after } => {
                    self.redials.push(Reverse((Instant::now() + after, peer)));
                    chores.has_timer = true;
                }
                Effect::Held { segment, generation } => descriptors.held(segment, generation),
                Effect::Released { reader, segment, generation } => {
                    chores.released.push((reader, segment, generation));
                    if self.sweep_at.is_none() {
                        self.sweep_at = Some(Instant::now() + SWEEP_PERIOD);
                        chores.has_timer = true;
                    }
                }
                Effect::Land { id, len, at, bytes } => {
                    chores.pieces.push(Piece { id, len, at, bytes });
                }
                Effect::Forsake(id) => chores.forsaken.push(id),
                Effect::Buried(proc) => chores.buried.push(proc),
                Effect::Close { link } => chores.closed.extend(self.wires.remove(&link)),
            }
        }
    }
}

impl Waiter {
    fn wake(&self, port: PortId) {
        match self {
            Self::Thread(parker) => parker.unpark(),
            Self::Loop(queue) => queue.upgrade().into_iter().for_each(|queue| queue.push(port)),
            Self::Many(waiters) => waiters.iter().for_each(|waiter| waiter.wake(port)),
        }
    }

    /// Adds another waiter, once.
    fn join(&mut self, other: Self) {
        if let Self::Many(waiters) = self {
            waiters.retain(|waiter| !waiter.is_gone());
            if !waiters.iter().any(|waiter| waiter.is_same(&other)) {
                waiters.push(other);
            }
        } else if !self.is_same(&other) {
            let first = std::mem::replace(self, Self::Many(Vec::new()));
            *self = Self::Many(vec![first, other]);
        }
    }

    fn is_gone(&self) -> bool {
        match self {
            // A thread keeps its parker as long as it lives.
            Self::Thread(parker) => Arc::strong_count(parker) == 1,
            Self::Loop(queue) => queue.strong_count() == 0,
            Self::Many(_) => false,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Thread(one), Self::Thread(other)) => Arc::ptr_eq(one, other),
            (Self::Loop(one), Self::Loop(other)) => Weak::ptr_eq(one, other),
            _ => false,
        }
    }

    fn is_other(&self, me: Option<&Arc<Parker>>) -> bool {
        match (self, me) {
            (Self::Thread(parker), Some(me)) => !Arc::ptr_eq(parker, me),
            (Self::Many(waiters), _) => waiters.iter().any(|waiter| waiter.is_other(me)),
            _ => false,
        }
    }
}

/// The process that looks after a host.
fn agent_of(host: HostId) -> ProcId {
    ProcId { host, slot: 0 }
}
