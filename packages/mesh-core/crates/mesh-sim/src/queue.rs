//! What will happen, in the order of a virtual clock.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events by time; those of one time in the order in which they were added.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Entry<E>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    at: Duration,
    place: u64,
    event: E,
}

impl<E> Queue<E> {
    /// Nothing to come.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, at: Duration, event: E) {
        self.added += 1;
        self.heap.push(Entry { at, place: self.added, event });
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self::new()
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The heap hands out the greatest: the earliest has to be it.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.place).cmp(&(self.at, self.place))
    }
}
