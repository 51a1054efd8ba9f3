//! Pool of the writers of a store. Up to `WRITERS_MAX` threads append to separate packs.

use crate::locks::lock;
use crate::writer::Writer;
use std::sync::{Condvar, Mutex, PoisonError};

/// Maximum number of threads of a process that write at the same time; others wait for one of them.
const WRITERS_MAX: usize = 4;

/// The writers of a store.
#[derive(Debug, Default)]
pub(crate) struct WriterPool {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug)]
struct State {
    /// Writers that no thread uses.
    idle: Vec<Writer>,
    /// Number of threads that hold a [`WriterLease`].
    leases: usize,
    /// The process to which the writers belong: a forked child cannot use them.
    process: u32,
}

/// Permission to write, with an existing writer or the right to create one. Released on drop.
#[derive(Debug)]
pub(crate) struct WriterLease<'a> {
    pool: &'a WriterPool,
    pub(crate) writer: Option<Writer>,
}

impl Default for State {
    fn default() -> Self {
        Self { idle: Vec::new(), leases: 0, process: std::process::id() }
    }
}

impl WriterPool {
    /// Waits for permission to write. The most recently used writer is assigned first, so a single
    /// thread always gets the same one.
    pub(crate) fn acquire(&self) -> WriterLease<'_> {
        let mut state = lock(&self.state);
        if state.process != std::process::id() {
            *state = State::default();
        }
        while state.leases == WRITERS_MAX {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.leases += 1;
        WriterLease { pool: self, writer: state.idle.pop() }
    }
}

impl Drop for WriterLease<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        state.leases -= 1;
        state.idle.extend(self.writer.take());
        drop(state);
        self.pool.released.notify_one();
    }
}
