//! This process among those that share memory: what it offers, and who uses it.

pub mod registry;

use crate::client::leases::Leases;
use crate::client::link::Link;
use crate::client::peer_monitor::PeerMonitor;
use crate::client::unreachable_peers::UnreachablePeers;
use crate::connection::peer_descriptor::{PeerDescriptor, Token};
use crate::domain::registry::{Entry, Holder, Keeper, Left, Memory, OURSELVES, Registry};
use crate::error::DataError;
use crate::memory::arena::{Arena, Block};
use crate::memory::cells::Cells;
use crate::memory::ledger::{Ledger, Place};
use crate::server::admission::{ConnectionLimiter, Refusal, Refusals};
use crate::server::peer::Peer;
use crate::server::tcp_listeners::TcpListeners;
use crate::span::Span;
use crate::stop::Stop;
use crate::transfers::thread_pool::ThreadPool;
use std::collections::HashMap;
use std::collections::hash_map::Entry::Occupied;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a copy that blocks a release may go on before its connection is shut.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long a handle may be on its way, if nobody says otherwise.
const TRAVEL_LIMIT: Duration = Duration::from_secs(60);
/// The first pause of whoever waits for copies of others; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// What answers a transport's question that came from another process.
pub type Answerer = Box<dyn Fn(&str, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// The memory that one process offers, and its connections to others.
pub struct Domain {
    descriptor: PeerDescriptor,
    ledger: Ledger,
    arena: Arc<Arena>,
    /// Copies of this process to and from its own memory.
    pub(crate) own: Cells,
    /// Our registrations that are written because somebody has asked for it, and how often.
    pins: Mutex<HashMap<u32, usize>>,
    registry: Mutex<Registry>,
    /// Registrations that were taken back while somebody had them in view.
    dying: Mutex<Vec<(u32, Entry)>>,
    peers: Mutex<HashMap<Holder, Arc<Peer>>>,
    pub(crate) links: Mutex<HashMap<Token, Arc<Link>>>,
    pub(crate) unreachable_peers: UnreachablePeers,
    answerer: OnceLock<Answerer>,
    travel_limit: Mutex<Duration>,
    pub(crate) peer_monitor: PeerMonitor,
    pub(crate) thread_pool: ThreadPool,
    pub(crate) leases: Leases,
    pub(crate) tcp_listeners: TcpListeners,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    pub(crate) refusals: Refusals,
}

impl Domain {
    pub(crate) fn new(descriptor: PeerDescriptor, peer_monitor: PeerMonitor) -> io::Result<Self> {
        Ok(Self {
            descriptor,
            ledger: Ledger::create()?,
            arena: Arc::default(),
            own: Cells::create()?,
            pins: Mutex::default(),
            registry: Mutex::default(),
            dying: Mutex::default(),
            peers: Mutex::default(),
            links: Mutex::default(),
            unreachable_peers: UnreachablePeers::default(),
            answerer: OnceLock::new(),
            travel_limit: Mutex::new(TRAVEL_LIMIT),
            peer_monitor,
            thread_pool: ThreadPool::default(),
            leases: Leases::default(),
            tcp_listeners: TcpListeners::default(),
            limiter: Arc::default(),
            refusals: Refusals::default(),
        })
    }

    /// Who this process is, for itself; others get its [`Domain::public_card`].
    pub fn card(&self) -> &PeerDescriptor {
        &self.descriptor
    }

    /// Which registrations are good.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The memory of this process that is shared from the beginning.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Takes a block of shared memory.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn allocate(&self, len: usize) -> Result<Block, DataError> {
        self.arena.allocate(len).map_err(DataError::system("cannot take shared memory"))
    }

    /// Says what answers questions of transports; only the first to say so is asked.
    pub fn answer_with(&self, answerer: Answerer) {
        let _ = self.answerer.set(answerer);
    }

    pub(crate) fn answerer(&self) -> Option<&Answerer> {
        self.answerer.get()
    }

    /// Offers memory to all who get the slot and the key, held by this process once.
    ///
    /// # Errors
    /// There are too many registrations, or the system has no random numbers.
    pub fn register(&self, memory: Memory, keeper: Keeper) -> Result<(u32, u64), DataError> {
        let key = u64::from_le_bytes(random()?) | 1;
        let Memory { span, is_writable, .. } = memory;
        let slot = self.registry().add(key, memory, keeper)?;
        let arena = self.arena.locate(span).map(|(segment, at)| (segment, at as u64));
        let (address, len) = (span.start as u64, span.len as u64);
        self.ledger.publish(slot, key, Place { address, len, is_writable, arena });
        Ok((slot, key))
    }

    /// Where a range of a registration is, for a copy by the processor that has said so in a cell.
    pub(crate) fn range(
        &self,
        slot: u32,
        key: u64,
        offset: u64,
        len: u64,
        is_write: bool,
    ) -> Result<Span, DataError> {
        let registry = self.registry();
        let entry = registry.get(slot, key).ok_or(DataError::Released)?;
        let Memory { span, is_writable, device } = entry.memory;
        if device.is_some() {
            return Err(DataError::OnDevice);
        }
        if is_write && !is_writable {
            return Err(DataError::ReadOnly);
        }
        let part = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
        part.and_then(|(offset, len)| span.part(offset, len)).ok_or(DataError::OutOfBounds {
            offset,
            end: offset.saturating_add(len),
            len: span.len as u64,
        })
    }

    /// What memory a registration has, if it is good.
    pub fn region(&self, slot: u32, key: u64) -> Option<Memory> {
        self.registry().get(slot, key).map(|entry| entry.memory)
    }

    /// Looks at what keeps the memory of a registration, if it is good.
    pub fn look<T>(&self, slot: u32, key: u64, look: impl FnOnce(&Keeper) -> T) -> Option<T> {
        self.registry().get(slot, key).map(|entry| look(&entry.keeper))
    }

    /// Has something dropped when the memory is let go, before it; tells whether that will be.
    pub fn keep(&self, slot: u32, key: u64, kept: Keeper) -> bool {
        // What is not kept is dropped outside the lock: it may run code of others.
        let result = self.registry().keep(slot, key, kept);
        result.is_ok()
    }

    /// Takes a registration back. When this returns, nobody copies to or from its memory.
    ///
    /// # Errors
    /// It was taken back before, or somebody still copies when it is time to stop; in that case the
    /// memory is kept until nobody does.
    pub fn release(&self, slot: u32, key: u64, stop: &Stop) -> Result<(), DataError> {
        let entry = self.registry().remove(slot, key).ok_or(DataError::Released)?;
        self.ledger.revoke(slot, key);
        self.settle(slot, entry, stop)
    }

    /// Waits until nobody copies any more, and lets the memory go.
    fn settle(&self, slot: u32, entry: Entry, stop: &Stop) -> Result<(), DataError> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        while self.is_copying(slot) {
            if let Err(error) = stop.check() {
                self.outlive(slot, entry);
                return Err(error);
            }
            if begun.elapsed() > PATIENCE {
                self.peers_of(slot).iter().for_each(|peer| peer.shut(slot));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        if self.is_borrowed(slot) {
            self.outlive(slot, entry);
        } else {
            self.bury(slot, entry);
        }
        Ok(())
    }

    /// Takes a registration back if nobody else holds it or has it in view; tells whether nobody
    /// uses its memory any more. Copies that are under way are waited for.
    ///
    /// # Errors
    /// Somebody still copies when it is time to stop; then the memory is kept until nobody does.
    pub fn reclaim(&self, slot: u32, key: u64, stop: &Stop) -> Result<bool, DataError> {
        let mut registry = self.registry();
        if registry.get(slot, key).is_none() {
            // Somebody has dropped it; others may have it in view as before.
            return Ok(!registry.is_leaving(slot, key));
        }
        let Some(entry) = registry.remove_unheld(slot, key) else { return Ok(false) };
        self.ledger.revoke(slot, key);
        drop(registry);
        if self.is_borrowed(slot) {
            self.registry().put_back(slot, entry);
            self.ledger.republish(slot, key);
            return Ok(false);
        }
        self.settle(slot, entry, stop).map(|()| true)
    }

    /// This process, or a peer, holds a handle once more; tells whether the buffer is good.
    pub fn lease(&self, slot: u32, key: u64) -> bool {
        self.lease_for(slot, key, OURSELVES)
    }

    pub(crate) fn lease_for(&self, slot: u32, key: u64, holder: Holder) -> bool {
        self.registry().lease(slot, key, holder)
    }

    /// This process holds a handle once less.
    pub fn end_lease(&self, slot: u32, key: u64) {
        self.end_lease_for(slot, key, OURSELVES);
    }

    pub(crate) fn end_lease_for(&self, slot: u32, key: u64, holder: Holder) {
        let left = self.registry().end_lease(slot, key, holder, Instant::now());
        match left {
            Left::Somebody => {}
            // Nobody else would look when the handle's time is over.
            Left::OnTheWay => self.peer_monitor.look(),
            Left::Nobody => self.forget(slot, key),
        }
    }

    /// A handle is sent to somebody, who has a while to say that it arrived.
    pub fn travels(&self, slot: u32, key: u64) {
        self.registry().travels(slot, key, self.travel_limit(), Instant::now());
    }

    /// Returns how long a handle may be on its way to another process.
    pub(crate) fn travel_limit(&self) -> Duration {
        *lock(&self.travel_limit)
    }

    /// Says how long handles that are sent from now on may be on their way.
    pub fn set_travel_limit(&self, limit: Duration) {
        *lock(&self.travel_limit) = limit;
    }

    /// How many registrations are good, and how many memory is still kept for.
    pub fn counts(&self) -> (usize, usize) {
        (self.registry().len(), lock(&self.dying).len())
    }

    /// How many processes are connected to this one, and to how many it is connected.
    pub fn connections(&self) -> (usize, usize) {
        (lock(&self.peers).len(), lock(&self.links).len())
    }

    /// How many connections were refused, for that reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals.of(why)
    }

    pub(crate) fn add_peer(&self, peer: Arc<Peer>) {
        lock(&self.peers).insert(peer.number, peer);
    }

    /// A peer's connection has ended: what it held and used, it holds and uses no more.
    pub(crate) fn remove_peer(&self, number: Holder) {
        lock(&self.peers).remove(&number);
        let forgotten = self.registry().end_all_leases(number, Instant::now());
        forgotten.into_iter().for_each(|(slot, key)| self.forget(slot, key));
        // What it had in view, and what is on its way to somebody else.
        self.peer_monitor.look();
    }

    pub(crate) fn peer(&self, number: Holder) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&number).cloned()
    }

    /// Frees what nobody has in view any more, and takes back what nobody holds; says when to look
    /// again.
    pub(crate) fn sweep(&self) -> Option<Instant> {
        let forgotten = self.registry().forgotten(Instant::now());
        for (slot, key) in forgotten {
            self.forget(slot, key);
        }
        let mut dying = lock(&self.dying);
        let is_over =
            |(slot, _): &mut (u32, Entry)| !self.is_copying(*slot) && !self.is_borrowed(*slot);
        let over: Vec<_> = dying.extract_if(.., is_over).collect();
        let is_waiting = !dying.is_empty();
        drop(dying);
        over.into_iter().for_each(|(slot, entry)| self.bury(slot, entry));
        let soon = is_waiting.then(|| Instant::now() + Duration::from_millis(100));
        let next = self.registry().next_look();
        soon.into_iter().chain(next).min()
    }

    /// Takes back what nobody can use any more, without waiting.
    fn forget(&self, slot: u32, key: u64) {
        let Some(entry) = self.registry().remove(slot, key) else { return };
        self.ledger.revoke(slot, key);
        if self.is_copying(slot) || self.is_borrowed(slot) {
            self.outlive(slot, entry);
        } else {
            self.bury(slot, entry);
        }
    }

    /// Keeps memory alive until nobody uses it any more.
    fn outlive(&self, slot: u32, entry: Entry) {
        lock(&self.dying).push((slot, entry));
        self.peer_monitor.look();
    }

    fn bury(&self, slot: u32, entry: Entry) {
        // Outside the lock: what keeps memory alive may run code of others when it is dropped.
        entry.let_go();
        self.registry().free(slot);
    }

    /// Says that a registration is written. Look at it afterwards, not before.
    pub(crate) fn pin(&self, slot: u32) {
        *lock(&self.pins).entry(slot).or_default() += 1;
    }

    /// It is written once less.
    pub(crate) fn unpin(&self, slot: u32) {
        let mut pins = lock(&self.pins);
        if let Occupied(mut count) = pins.entry(slot) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn is_copying(&self, slot: u32) -> bool {
        lock(&self.pins).contains_key(&slot)
            || self.own.is_copying(slot)
            || !self.peers_of(slot).is_empty()
    }

    fn peers_of(&self, slot: u32) -> Vec<Arc<Peer>> {
        let peers = lock(&self.peers);
        peers.values().filter(|peer| peer.is_copying(slot)).cloned().collect()
    }

    fn is_borrowed(&self, slot: u32) -> bool {
        self.own.is_borrowing(slot)
            || lock(&self.peers).values().any(|peer| peer.is_borrowing(slot))
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], DataError> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(len) if len == N => Ok(bytes),
        other => {
            let source = other.err().map_or_else(|| io::Error::other("too few"), io::Error::from);
            Err(DataError::System { doing: "cannot take random numbers", source })
        }
    }
}
