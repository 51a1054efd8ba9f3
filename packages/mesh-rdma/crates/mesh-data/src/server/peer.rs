//! A connected peer, as seen by the owner of the memory.

use crate::connection::socket::Socket;
use crate::domain::registry::Holder;
use crate::memory::cells::Cells;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Release, SeqCst};

/// One connection to this process.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) number: Holder,
    pub(crate) socket: Arc<Socket>,
    /// The cells for copies that the peer executes itself; only peers on this machine have them.
    cells: Option<Cells>,
    /// The slot that a thread of this process reads or writes for the peer, plus one; or zero.
    served: AtomicU64,
}

/// While this exists, a thread of this process copies for the peer.
pub(crate) struct Serving<'a>(&'a Peer);

impl Peer {
    pub(crate) fn new(number: Holder, socket: Arc<Socket>, cells: Option<Cells>) -> Self {
        Self { number, socket, cells, served: AtomicU64::new(0) }
    }

    /// Announces a copy to or from a slot for the peer. Check the key afterwards, not before.
    pub(crate) fn serving(&self, slot: u32) -> Serving<'_> {
        self.served.store(u64::from(slot) + 1, SeqCst);
        Serving(self)
    }

    pub(crate) fn is_copying(&self, slot: u32) -> bool {
        self.served.load(SeqCst) == u64::from(slot) + 1
            || self.cells.as_ref().is_some_and(|cells| cells.is_copying(slot))
    }

    pub(crate) fn is_viewing(&self, slot: u32) -> bool {
        self.cells.as_ref().is_some_and(|cells| cells.is_viewing(slot))
    }

    /// Ends the copy for the peer to or from a slot, in case the peer has stopped sending or
    /// receiving.
    pub(crate) fn shut(&self, slot: u32) {
        if self.served.load(SeqCst) == u64::from(slot) + 1 {
            self.socket.shut();
        }
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.served.store(0, Release);
    }
}
