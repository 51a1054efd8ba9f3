//! Wake-up of an event loop: ports that became ready, behind one descriptor.

use super::parker::Waker;
use super::wire::lock;
use mesh_wire::id::PortId;
use rustix::fd::{AsFd, BorrowedFd};
use std::io;
use std::sync::Mutex;

/// Ports that became ready since the loop last checked.
#[derive(Debug)]
pub struct ReadyQueue {
    /// At most one entry for each arrival, which the mailboxes bound.
    ports: Mutex<Vec<PortId>>,
    waker: Waker,
}

impl ReadyQueue {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ports: Mutex::default(), waker: Waker::new()? })
    }

    /// Adds a port; wakes the loop if the queue was empty.
    pub fn push(&self, port: PortId) {
        let is_first = {
            let mut ports = lock(&self.ports);
            let is_first = ports.is_empty();
            if ports.last() != Some(&port) {
                ports.push(port);
            }
            is_first
        };
        if is_first {
            self.waker.wake();
        }
    }

    /// Takes all ports; the descriptor becomes readable again with the next one.
    pub fn take(&self) -> Vec<PortId> {
        self.waker.reset();
        std::mem::take(&mut lock(&self.ports))
    }
}

impl AsFd for ReadyQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}
