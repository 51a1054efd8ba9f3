//! Wake-up of an event loop: ports that became ready, behind one descriptor.

use super::parker::Waker;
use super::wire::lock;
use mesh_wire::id::PortId;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ports that became ready since the loop last checked.
#[derive(Debug)]
pub struct ReadyQueue {
    ready: Mutex<Ready>,
    waker: Waker,
    /// Whether the loop also watches the connections.
    has_reader: AtomicBool,
}

#[derive(Debug, Default)]
struct Ready {
    /// At most one entry for each arrival, which the mailboxes bound.
    ports: Vec<PortId>,
    /// Whether the thread of the loop reads the connections now, and takes the ports afterwards.
    is_reading: bool,
}

impl ReadyQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Mutex::default(),
            waker: Waker::new()?,
            has_reader: AtomicBool::new(false),
        })
    }

    /// Adds a port; wakes the loop if it sleeps and the queue was empty.
    pub fn push(&self, port: PortId) {
        let needs_wake = {
            let mut ready = lock(&self.ready);
            let is_first = ready.ports.is_empty();
            if ready.ports.last() != Some(&port) {
                ready.ports.push(port);
            }
            is_first && !ready.is_reading
        };
        if needs_wake {
            self.waker.wake();
        }
    }

    /// Takes all ports; the descriptor becomes readable again with the next one.
    pub fn take(&self) -> Vec<PortId> {
        self.waker.reset();
        std::mem::take(&mut lock(&self.ready).ports)
    }

    pub(super) fn has_reader(&self) -> bool {
        self.has_reader.load(Ordering::Relaxed)
    }

    /// Records whether the loop also watches the connections; returns whether it did before.
    pub(super) fn set_reader(&self, has_reader: bool) -> bool {
        self.has_reader.swap(has_reader, Ordering::SeqCst)
    }

    /// Takes the ports that become ready during `read`, and the earlier ones, on the loop's thread.
    pub(super) fn take_during(&self, read: impl FnOnce()) -> Vec<PortId> {
        lock(&self.ready).is_reading = true;
        read();
        let mut ready = lock(&self.ready);
        ready.is_reading = false;
        std::mem::take(&mut ready.ports)
    }
}

impl AsFd for ReadyQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
