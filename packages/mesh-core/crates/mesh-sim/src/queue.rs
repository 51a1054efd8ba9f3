//! The event queue, ordered by virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A priority queue of events. Events of the same time keep the order in which they were added.
///
/// The heap moves only keys, because events are large; an event stays in place until it is due.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Key>>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    added: u64,
}

/// The sort key: time in nanoseconds, then the order of addition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    at: u64,
    added: u64,
    slot: u32,
}

impl<E> Queue<E> {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), added: 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, at: Duration, event: E) {
        self.add_ns(at.as_nanos() as u64, event);
    }

    /// Adds an event like [`Queue::add`], with its time in nanoseconds.
    pub fn add_ns(&mut self, at: u64, event: E) {
        self.added += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.events.push(None);
            u32::try_from(self.events.len() - 1).expect("memory ends before 2^32 events")
        });
        self.events[slot as usize] = Some(event);
        self.heap.push(Reverse(Key { at, added: self.added, slot }));
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Duration> {
        self.heap.peek().map(|Reverse(key)| Duration::from_nanos(key.at))
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        self.pop_ns().map(|(at, event)| (Duration::from_nanos(at), event))
    }

    /// Removes the next event like [`Queue::pop`], with its time in nanoseconds.
    pub fn pop_ns(&mut self) -> Option<(u64, E)> {
        let Reverse(Key { at, slot, .. }) = self.heap.pop()?;
        self.free.push(slot);
        let event = self.events[slot as usize].take().expect("its key was in the heap");
        Some((at, event))
    }
}

impl<E> Queue<E> {
    /// Releases the memory of events that have been removed.
    pub fn trim(&mut self) {
        let mut keys = std::mem::take(&mut self.heap).into_vec();
        let mut events = Vec::with_capacity(keys.len());
        for Reverse(key) in &mut keys {
            events.push(self.events[key.slot as usize].take());
            key.slot = events.len() as u32 - 1;
        }
        keys.shrink_to_fit();
        (self.heap, self.events, self.free) = (keys.into(), events, Vec::new());
    }
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self::new()
    }
}
