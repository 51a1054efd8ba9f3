//! Notifies owners in the background which of their buffers this process holds.

use crate::client::link::Link;
use crate::connection::frame::{Request, Verb};
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::process::generation;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const STACK_LEN: usize = 256 << 10;
/// How long an owner may take to reply.
const LIMIT: Duration = Duration::from_secs(10);

/// The queue of notifications, which are sent in order.
#[derive(Default)]
pub(crate) struct Leases(Mutex<Option<Sender<LeaseChange>>>);

/// The first handle has arrived, or the last one was dropped.
struct LeaseChange {
    descriptor: Arc<PeerDescriptor>,
    slot: u32,
    key: u64,
    is_held: bool,
}

/// A lease on a buffer of another process, which lasts until it is dropped.
pub struct Lease {
    domain: Arc<Domain>,
    descriptor: Arc<PeerDescriptor>,
    slot: u32,
    key: u64,
    /// The generation of the process that began the lease.
    generation: usize,
}

impl Lease {
    /// Begins a lease; the owner is notified in the background.
    pub fn begin(
        domain: &Arc<Domain>,
        descriptor: &Arc<PeerDescriptor>,
        slot: u32,
        key: u64,
    ) -> Self {
        let (domain, descriptor, generation) =
            (Arc::clone(domain), Arc::clone(descriptor), generation());
        let lease = Self { domain, descriptor, slot, key, generation };
        lease.notify(true);
        lease
    }

    /// Like [`Lease::begin`], but waits until the owner has confirmed that the buffer is valid.
    ///
    /// # Errors
    /// The buffer was released, or its owner has died.
    pub fn confirmed(
        domain: &Arc<Domain>,
        descriptor: &Arc<PeerDescriptor>,
        slot: u32,
        key: u64,
    ) -> Result<Self, DataError> {
        let request = Request::of(Verb::Lease, slot, key);
        let (reply, _) =
            Link::get_or_connect(domain, descriptor)?.call(&request, &[], Some(LIMIT))?;
        reply.outcome(&request)?;
        let generation = generation();
        Ok(Self {
            domain: Arc::clone(domain),
            descriptor: Arc::clone(descriptor),
            slot,
            key,
            generation,
        })
    }

    fn notify(&self, is_held: bool) {
        let Self { slot, key, .. } = *self;
        let changes = LeaseChange { descriptor: Arc::clone(&self.descriptor), slot, key, is_held };
        let mut sender = lock(&self.domain.leases.0);
        if sender.is_none() {
            let (first, receiver) = channel();
            let domain = Arc::clone(&self.domain);
            let builder = thread::Builder::new().name("mesh-rdma-leases".into());
            // Without the thread, the owner is not notified, and drops the buffer when the handle
            // expires.
            if builder.stack_size(STACK_LEN).spawn(move || run(&domain, &receiver)).is_ok() {
                *sender = Some(first);
            }
        }
        if let Some(sender) = &*sender {
            let _ = sender.send(changes);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.generation == generation() {
            self.notify(false);
        }
    }
}

fn run(domain: &Arc<Domain>, changes: &Receiver<LeaseChange>) {
    for LeaseChange { descriptor, slot, key, is_held } in changes {
        let verb = if is_held { Verb::Lease } else { Verb::EndLease };
        // If the owner has died or has released the buffer, the next use of it fails.
        if let Ok(link) = Link::get_or_connect(domain, &descriptor) {
            let _ = link.call(&Request::of(verb, slot, key), &[], Some(LIMIT));
        }
    }
}
