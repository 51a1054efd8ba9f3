//! Assignment of writers to threads. Up to `WRITERS_MAX` threads append to separate packs.

use crate::locks::lock;
use crate::writer::Writer;
use std::sync::{Condvar, Mutex, PoisonError};

/// Maximum number of threads of a process that write at the same time; others wait for one of them.
const WRITERS_MAX: usize = 4;

/// The writers of a store.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    idle: Mutex<Idle>,
    freed: Condvar,
}

#[derive(Debug)]
struct Idle {
    writers: Vec<Writer>,
    /// Number of threads that hold a [`Turn`].
    turns: usize,
    /// Process to which the writers belong: a forked child has none of them.
    process: u32,
}

/// Permission to write, with an existing writer or the right to create one. Released on drop.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    pub(crate) writer: Option<Writer>,
}

impl Default for Idle {
    fn default() -> Self {
        Self { writers: Vec::new(), turns: 0, process: std::process::id() }
    }
}

impl Turns {
    /// Waits for permission to write. The most recently used writer is assigned first, so a single
    /// thread always gets the same one.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut idle = lock(&self.idle);
        if idle.process != std::process::id() {
            *idle = Idle::default();
        }
        while idle.turns == WRITERS_MAX {
            idle = self.freed.wait(idle).unwrap_or_else(PoisonError::into_inner);
        }
        idle.turns += 1;
        Turn { turns: self, writer: idle.writers.pop() }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut idle = lock(&self.turns.idle);
        idle.turns -= 1;
        idle.writers.extend(self.writer.take());
        drop(idle);
        self.turns.freed.notify_one();
    }
}
