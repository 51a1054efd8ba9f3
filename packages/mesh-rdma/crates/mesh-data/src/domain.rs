//! The domain: the registered memory of this process, its users, and connections to other
//! processes.

pub mod registry;

use crate::client::leases::Leases;
use crate::client::link::Link;
use crate::client::peer_monitor::PeerMonitor;
use crate::client::unreachable_peers::UnreachablePeers;
use crate::connection::peer_descriptor::{PeerDescriptor, Token};
use crate::domain::registry::{
    Entry, Holder, Memory, MemoryOwner, Registry, RemainingUsers, THIS_PROCESS,
};
use crate::error::DataError;
use crate::memory::arena::{Arena, Block};
use crate::memory::cells::Cells;
use crate::memory::ledger::{Ledger, Location};
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

/// How long a copy may delay a release before its connection is shut down.
const RELEASE_DELAY_MAX: Duration = Duration::from_millis(20);
/// How long a handle may be in transit by default.
const TRANSIT_TIMEOUT: Duration = Duration::from_secs(60);
/// The first pause while waiting for copies of other processes; each further pause is twice as
/// long.
const PAUSE_MIN: Duration = Duration::from_micros(20);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// The function that handles requests of other processes to a transport.
pub type RequestHandler = Box<dyn Fn(&str, &[u8]) -> Result<Vec<u8>, String> + Send + Sync>;

/// The memory that one process has registered, and its connections to other processes.
pub struct Domain {
    descriptor: PeerDescriptor,
    ledger: Ledger,
    arena: Arc<Arena>,
    /// Copies of this process to and from its own memory.
    pub(crate) own: Cells,
    /// The number of pins by slot: copies that other processes have requested.
    pins: Mutex<HashMap<u32, usize>>,
    registry: Mutex<Registry>,
    /// Released registrations whose memory is still in use.
    deferred: Mutex<Vec<(u32, Entry)>>,
    peers: Mutex<HashMap<Holder, Arc<Peer>>>,
    pub(crate) links: Mutex<HashMap<Token, Arc<Link>>>,
    pub(crate) unreachable_peers: UnreachablePeers,
    request_handler: OnceLock<RequestHandler>,
    transit_timeout: Mutex<Duration>,
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
            deferred: Mutex::default(),
            peers: Mutex::default(),
            links: Mutex::default(),
            unreachable_peers: UnreachablePeers::default(),
            request_handler: OnceLock::new(),
            transit_timeout: Mutex::new(TRANSIT_TIMEOUT),
            peer_monitor,
            thread_pool: ThreadPool::default(),
            leases: Leases::default(),
            tcp_listeners: TcpListeners::default(),
            limiter: Arc::default(),
            refusals: Refusals::default(),
        })
    }

    /// The descriptor of this process for internal use; other processes get its
    /// [`Domain::public_descriptor`].
    pub fn descriptor(&self) -> &PeerDescriptor {
        &self.descriptor
    }

    /// The table of valid registrations.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The shared memory of this process.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Allocates a block of shared memory.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub fn allocate(&self, len: usize) -> Result<Block, DataError> {
        self.arena.allocate(len).map_err(DataError::system("cannot take shared memory"))
    }

    /// Sets the handler of requests to transports; only the first call has an effect.
    pub fn set_request_handler(&self, request_handler: RequestHandler) {
        let _ = self.request_handler.set(request_handler);
    }

    pub(crate) fn request_handler(&self) -> Option<&RequestHandler> {
        self.request_handler.get()
    }

    /// Registers memory for all processes that receive the slot and the key, with one lease of this
    /// process.
    ///
    /// # Errors
    /// There are too many registrations, or the system does not provide random numbers.
    pub fn register(
        &self,
        memory: Memory,
        memory_owner: MemoryOwner,
    ) -> Result<(u32, u64), DataError> {
        let key = u64::from_le_bytes(random()?) | 1;
        let Memory { span, is_writable, .. } = memory;
        let slot = self.registry().add(key, memory, memory_owner)?;
        let arena = self.arena.locate(span).map(|(segment, at)| (segment, at as u64));
        let (address, len) = (span.start as u64, span.len as u64);
        self.ledger.publish(slot, key, Location { address, len, is_writable, arena });
        Ok((slot, key))
    }

    /// The location of a range of a registration; the copy must have been announced in a cell.
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

    /// The memory of a registration, if it is valid.
    pub fn region(&self, slot: u32, key: u64) -> Option<Memory> {
        self.registry().get(slot, key).map(|entry| entry.memory)
    }

    /// Calls `f` with the owner of the memory of a registration, if it is valid.
    pub fn with_memory_owner<T>(
        &self,
        slot: u32,
        key: u64,
        f: impl FnOnce(&MemoryOwner) -> T,
    ) -> Option<T> {
        self.registry().get(slot, key).map(|entry| f(&entry.memory_owner))
    }

    /// Attaches an object that is dropped before the memory is released; returns whether it was
    /// attached.
    pub fn attach_object(&self, slot: u32, key: u64, object: MemoryOwner) -> bool {
        // An object that is not attached is dropped without the lock, because it may run foreign
        // code.
        let result = self.registry().attach_object(slot, key, object);
        result.is_ok()
    }

    /// Releases a registration. When this returns, no process copies to or from its memory.
    ///
    /// # Errors
    /// It was released previously, or a copy is still in progress at the deadline, in which case
    /// the memory is kept until the copy has ended.
    pub fn release(&self, slot: u32, key: u64, stop: &Stop) -> Result<(), DataError> {
        let entry = self.registry().remove(slot, key).ok_or(DataError::Released)?;
        self.ledger.revoke(slot, key);
        self.wait_and_free(slot, entry, stop)
    }

    /// Waits until no copy is in progress, and releases the memory.
    fn wait_and_free(&self, slot: u32, entry: Entry, stop: &Stop) -> Result<(), DataError> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        while self.is_copying(slot) {
            if let Err(error) = stop.check() {
                self.defer_free(slot, entry);
                return Err(error);
            }
            if begun.elapsed() > RELEASE_DELAY_MAX {
                self.peers_of(slot).iter().for_each(|peer| peer.shut(slot));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        if self.is_viewed(slot) {
            self.defer_free(slot, entry);
        } else {
            self.free_memory(slot, entry);
        }
        Ok(())
    }

    /// Releases a registration unless another holder has a lease or a view; returns whether its
    /// memory is no longer in use. It waits for copies in progress.
    ///
    /// # Errors
    /// A copy is still in progress at the deadline, in which case the memory is kept until it has
    /// ended.
    pub fn reclaim(&self, slot: u32, key: u64, stop: &Stop) -> Result<bool, DataError> {
        let mut registry = self.registry();
        if registry.get(slot, key).is_none() {
            // Another process has dropped it; views of it may still exist.
            return Ok(!registry.is_removed(slot, key));
        }
        let Some(entry) = registry.remove_unheld(slot, key) else { return Ok(false) };
        self.ledger.revoke(slot, key);
        drop(registry);
        if self.is_viewed(slot) {
            self.registry().restore(slot, entry);
            self.ledger.republish(slot, key);
            return Ok(false);
        }
        self.wait_and_free(slot, entry, stop).map(|()| true)
    }

    /// Adds a lease of this process; returns whether the buffer is valid.
    pub fn lease(&self, slot: u32, key: u64) -> bool {
        self.lease_for(slot, key, THIS_PROCESS)
    }

    pub(crate) fn lease_for(&self, slot: u32, key: u64, holder: Holder) -> bool {
        self.registry().lease(slot, key, holder)
    }

    /// Removes a lease of this process.
    pub fn end_lease(&self, slot: u32, key: u64) {
        self.end_lease_for(slot, key, THIS_PROCESS);
    }

    pub(crate) fn end_lease_for(&self, slot: u32, key: u64, holder: Holder) {
        let left = self.registry().end_lease(slot, key, holder, Instant::now());
        match left {
            RemainingUsers::Holders => {}
            // The monitor checks the registration when the handle in transit expires.
            RemainingUsers::InTransit => self.peer_monitor.wake(),
            RemainingUsers::None => self.release_unused(slot, key),
        }
    }

    /// Records that a handle was sent, whose receiver has a limited time to confirm it.
    pub fn mark_in_transit(&self, slot: u32, key: u64) {
        let limit = *lock(&self.transit_timeout);
        self.registry().mark_in_transit(slot, key, limit, Instant::now());
    }

    /// Sets how long handles that are sent from now on may be in transit.
    pub fn set_transit_timeout(&self, limit: Duration) {
        *lock(&self.transit_timeout) = limit;
    }

    /// The number of valid registrations, and of released ones whose memory is still kept.
    pub fn counts(&self) -> (usize, usize) {
        (self.registry().len(), lock(&self.deferred).len())
    }

    /// The number of connections to this process, and of processes to which it is connected.
    pub fn connections(&self) -> (usize, usize) {
        (lock(&self.peers).len(), lock(&self.links).len())
    }

    /// The number of connections that were refused for a reason.
    pub fn refused(&self, why: Refusal) -> u64 {
        self.refusals.of(why)
    }

    pub(crate) fn add_peer(&self, peer: Arc<Peer>) {
        lock(&self.peers).insert(peer.number, peer);
    }

    /// Removes a peer whose connection has ended, with its leases.
    pub(crate) fn remove_peer(&self, number: Holder) {
        lock(&self.peers).remove(&number);
        let unused = self.registry().end_all_leases(number, Instant::now());
        unused.into_iter().for_each(|(slot, key)| self.release_unused(slot, key));
        // The monitor releases the memory that it viewed, and expires handles that it sent.
        self.peer_monitor.wake();
    }

    pub(crate) fn peer(&self, number: Holder) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&number).cloned()
    }

    /// Releases memory without views and registrations without holders; returns the time of the
    /// next call.
    pub(crate) fn sweep(&self) -> Option<Instant> {
        let unused = self.registry().unused(Instant::now());
        for (slot, key) in unused {
            self.release_unused(slot, key);
        }
        let mut deferred = lock(&self.deferred);
        let is_over =
            |(slot, _): &mut (u32, Entry)| !self.is_copying(*slot) && !self.is_viewed(*slot);
        let over: Vec<_> = deferred.extract_if(.., is_over).collect();
        let is_waiting = !deferred.is_empty();
        drop(deferred);
        over.into_iter().for_each(|(slot, entry)| self.free_memory(slot, entry));
        let soon = is_waiting.then(|| Instant::now() + Duration::from_millis(100));
        let next = self.registry().next_expiration();
        soon.into_iter().chain(next).min()
    }

    /// Releases a registration that no process can use anymore, without waiting.
    fn release_unused(&self, slot: u32, key: u64) {
        let Some(entry) = self.registry().remove(slot, key) else { return };
        self.ledger.revoke(slot, key);
        if self.is_copying(slot) || self.is_viewed(slot) {
            self.defer_free(slot, entry);
        } else {
            self.free_memory(slot, entry);
        }
    }

    /// Keeps memory alive until it is no longer in use.
    fn defer_free(&self, slot: u32, entry: Entry) {
        lock(&self.deferred).push((slot, entry));
        self.peer_monitor.wake();
    }

    fn free_memory(&self, slot: u32, entry: Entry) {
        // This runs without the lock, because dropping a memory owner may run foreign code.
        entry.free();
        self.registry().free(slot);
    }

    /// Pins a registration. Look it up afterwards, not before.
    pub(crate) fn pin(&self, slot: u32) {
        *lock(&self.pins).entry(slot).or_default() += 1;
    }

    /// Removes a pin.
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

    fn is_viewed(&self, slot: u32) -> bool {
        self.own.is_viewing(slot) || lock(&self.peers).values().any(|peer| peer.is_viewing(slot))
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Unpredictable random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], DataError> {
    let mut bytes = [0; N];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(len) if len == N => Ok(bytes),
        other => {
            let source = other.err().map_or_else(|| io::Error::other("too few"), io::Error::from);
            Err(DataError::System { doing: "cannot get random numbers", source })
        }
    }
}
