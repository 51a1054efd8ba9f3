//! Notifies owners in the background which of their buffers this process holds.

use crate::client::link::Link;
use crate::connection::frame::{Request, Verb};
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::process::generation;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const STACK_LEN: usize = 256 << 10;
/// How long an owner may take to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// The queue of notifications to owners.
#[derive(Default)]
pub(crate) struct Leases(Mutex<Option<Sender<News>>>);

/// A lease begins or ends.
struct News {
    descriptor: Arc<PeerDescriptor>,
    slot: u32,
    key: u64,
    change: Change,
}

enum Change {
    Begins,
    Ends,
    /// The handle may be on its way to another process, whose lease has to begin first.
    EndsAt(Instant),
}

/// A lease on a buffer of another process, which ends when this is dropped.
pub struct Lease {
    domain: Arc<Domain>,
    descriptor: Arc<PeerDescriptor>,
    slot: u32,
    key: u64,
    /// Until when a handle that this process sent may be on its way.
    travels_until: Mutex<Option<Instant>>,
    /// The process that began the lease: a forked child does not end it.
    generation: usize,
}

impl Lease {
    /// Begins a lease, and notifies the owner in the background.
    pub fn begin(
        domain: &Arc<Domain>,
        descriptor: &Arc<PeerDescriptor>,
        slot: u32,
        key: u64,
    ) -> Self {
        let lease = Self::of(domain, descriptor, slot, key);
        lease.notify(Change::Begins);
        lease
    }

    /// Like [`Lease::begin`], but waits until the owner has confirmed that the buffer is valid.
    ///
    /// # Errors
    /// If the buffer was released, or its owner is dead.
    pub fn confirmed(
        domain: &Arc<Domain>,
        descriptor: &Arc<PeerDescriptor>,
        slot: u32,
        key: u64,
    ) -> Result<Self, DataError> {
        let request = Request::of(Verb::Lease, slot, key);
        let (reply, _) = Link::to(domain, descriptor)?.ask(&request, &[], Some(LIMIT))?;
        reply.outcome(&request)?;
        Ok(Self::of(domain, descriptor, slot, key))
    }

    fn of(domain: &Arc<Domain>, descriptor: &Arc<PeerDescriptor>, slot: u32, key: u64) -> Self {
        let (domain, descriptor) = (Arc::clone(domain), Arc::clone(descriptor));
        let (travels_until, generation) = (Mutex::new(None), generation());
        Self { domain, descriptor, slot, key, travels_until, generation }
    }

    /// Extends the lease beyond its drop, by the time that a handle may be on its way.
    ///
    /// The process that receives the handle begins a lease of its own. Its notification and the end
    /// of this lease use different connections, so the owner may receive them in any order.
    pub fn travels(&self) {
        *lock(&self.travels_until) = Some(Instant::now() + self.domain.travel_limit());
    }

    fn notify(&self, change: Change) {
        let Self { slot, key, .. } = *self;
        let news = News { descriptor: Arc::clone(&self.descriptor), slot, key, change };
        let mut sender = lock(&self.domain.leases.0);
        if sender.is_none() {
            let (first, receiver) = channel();
            let domain = Arc::clone(&self.domain);
            let builder = thread::Builder::new().name("mesh-rdma-leases".into());
            // Without the thread, the buffer may be released when its time on the way is over.
            if builder.stack_size(STACK_LEN).spawn(move || run(&domain, &receiver)).is_ok() {
                *sender = Some(first);
            }
        }
        if let Some(sender) = &*sender {
            let _ = sender.send(news);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.generation == generation() {
            let travels_until = *lock(&self.travels_until);
            self.notify(travels_until.map_or(Change::Ends, Change::EndsAt));
        }
    }
}

fn run(domain: &Arc<Domain>, news: &Receiver<News>) {
    let mut delayed: BTreeMap<(Instant, u64), News> = BTreeMap::new();
    let mut count = 0;
    loop {
        let received = match delayed.first_key_value() {
            Some(((due, _), _)) => news.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => news.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match received {
            Ok(News { change: Change::EndsAt(due), descriptor, slot, key }) => {
                count += 1;
                delayed.insert((due, count), News { descriptor, slot, key, change: Change::Ends });
            }
            Ok(news) => send(domain, &news),
            Err(RecvTimeoutError::Timeout) => {
                if let Some((_, news)) = delayed.pop_first() {
                    send(domain, &news);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn send(domain: &Arc<Domain>, news: &News) {
    let verb = if matches!(news.change, Change::Begins) { Verb::Lease } else { Verb::EndLease };
    // If the owner is dead or has released the buffer, the next use of the buffer reports it.
    if let Ok(link) = Link::to(domain, &news.descriptor) {
        let _ = link.ask(&Request::of(verb, news.slot, news.key), &[], Some(LIMIT));
    }
}
