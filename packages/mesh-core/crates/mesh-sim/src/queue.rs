//! What will happen, in the order of a virtual clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events by time; those of one time in the order in which they were added.
///
/// The heap moves only keys: events are large, and lie still until their time comes.
#[derive(Debug)]
pub struct Queue<E> {
    heap: BinaryHeap<Reverse<Key>>,
    events: Vec<Option<E>>,
    free: Vec<u32>,
    added: u64,
}

/// The earliest first, in nanoseconds; then the first that was added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    at: u64,
    added: u64,
    slot: u32,
}

impl<E> Queue<E> {
    /// Nothing to come.
    pub fn new() -> Self {
        Self { heap: BinaryHeap::new(), events: Vec::new(), free: Vec::new(), added: 0 }
    }

    /// Adds an event.
    pub fn add(&mut self, at: Duration, event: E) {
        self.add_ns(at.as_nanos() as u64, event);
    }

    /// As [`Queue::add`], in nanoseconds.
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

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Duration, E)> {
        self.pop_ns().map(|(at, event)| (Duration::from_nanos(at), event))
    }

    /// As [`Queue::pop`], in nanoseconds.
    pub fn pop_ns(&mut self) -> Option<(u64, E)> {
        let Reverse(Key { at, slot, .. }) = self.heap.pop()?;
        self.free.push(slot);
        let event = self.events[slot as usize].take().expect("its key was in the heap");
        Some((at, event))
    }
}

impl<E> Queue<E> {
    /// Gives back the memory of events that are over.
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
