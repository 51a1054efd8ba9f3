//! Which thread uses which writer: each adds to a pack of its own, as long as there are few.

use crate::locks::lock;
use crate::writer::Writer;
use std::sync::{Condvar, Mutex, PoisonError};

/// How many threads of a process write at a time; each further one waits for one of these.
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
    /// How many threads have a turn.
    turns: usize,
    /// Whose they are: a copy of the process has none of them.
    process: u32,
}

/// The right to write, with a writer or with that to begin one. It ends when this is dropped.
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
    /// Waits for a turn. The writer that was used last comes first, so that one thread has one.
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
