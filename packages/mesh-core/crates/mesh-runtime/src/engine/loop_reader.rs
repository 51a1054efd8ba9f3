//! Event loops that read the connections on their own thread.
//!
//! The selector of the loop watches the epoll set of the leader. While the loop sleeps, an arrival
//! therefore wakes the thread that needs it, and no other thread hands it over.

use super::Engine;
use super::poller::WAKER;
use super::ready::ReadyQueue;
use crate::node::LinkId;
use mesh_wire::id::PortId;
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One event loop as a reader of the connections of an engine.
pub struct LoopReader {
    engine: Arc<Engine>,
    queue: Arc<ReadyQueue>,
}

impl LoopReader {
    /// Creates a reader for the loop that polls `queue`.
    pub fn new(engine: Arc<Engine>, queue: Arc<ReadyQueue>) -> Self {
        Self { engine, queue }
    }

    /// Records whether the loop watches the descriptor of this reader.
    ///
    /// The IO thread leaves arrivals to attached loops for a moment.
    pub fn set_attached(&self, is_attached: bool) {
        match (self.queue.set_reader(is_attached), is_attached) {
            (false, true) => drop(self.engine.loop_count.fetch_add(1, Ordering::SeqCst)),
            (true, false) => drop(self.engine.loop_count.fetch_sub(1, Ordering::SeqCst)),
            _ => {}
        }
    }

    /// Reads the connections that have data, and returns the ports that became ready for the loop.
    ///
    /// Returns `None` if another thread is reading them.
    pub fn read(&self) -> Option<Vec<PortId>> {
        let engine = &self.engine;
        if !engine.begin_lead() {
            return None;
        }
        let ports = self.queue.take_during(|| {
            let mut tokens = Vec::new();
            // If the descriptors are closed, the IO thread notices it.
            let _ = engine.lead.sleep(Some(Duration::ZERO), &mut tokens);
            for token in tokens {
                match token {
                    // No thread sleeps on the set now, so no other thread needs this notification.
                    WAKER => engine.lead.waker.reset(),
                    token => drop(engine.read_link(LinkId(token as u32), None)),
                }
            }
        });
        engine.end_lead();
        Some(ports)
    }
}

impl AsFd for LoopReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.engine.lead.epoll.as_fd()
    }
}

impl Drop for LoopReader {
    fn drop(&mut self) {
        self.set_attached(false);
    }
}
