//! Memory for a message that arrives in pieces from another host.
//!
//! The memory is a segment, so that all readers on this host see the same pages.

use super::memory::Memory;
use super::pool::{Filled, SegmentPool};
use bytes::Bytes;
use mesh_wire::id::ProcId;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A message that is not complete yet.
///
/// All methods may be called from any thread; pieces may arrive in any order.
pub struct DirectReceive {
    len: usize,
    state: Mutex<State>,
}

struct State {
    place: Place,
    /// Number of bytes from the start that have arrived.
    received_len: usize,
    /// Pieces that have overtaken others, by offset.
    out_of_order: BTreeMap<usize, Bytes>,
}

/// Where the bytes are stored.
enum Place {
    /// A segment of a pool, which has no memory before the first piece.
    Shared { pool: Arc<SegmentPool>, index: usize, memory: Option<Memory> },
    /// Private memory of this process.
    Plain(Vec<u8>),
}

/// A complete message.
#[derive(Debug)]
pub enum ReceiveResult {
    /// In a segment that its readers hold.
    Shared(Filled),
    /// In private memory of this process.
    Plain(Bytes),
}

impl DirectReceive {
    /// Allocates private memory of this process for a message.
    pub fn plain(len: usize) -> Self {
        Self::new(len, Place::Plain(Vec::new()))
    }

    pub(super) fn shared(
        len: usize,
        pool: Arc<SegmentPool>,
        index: usize,
        memory: Option<Memory>,
    ) -> Self {
        Self::new(len, Place::Shared { pool, index, memory })
    }

    fn new(len: usize, place: Place) -> Self {
        Self {
            len,
            state: Mutex::new(State { place, received_len: 0, out_of_order: BTreeMap::new() }),
        }
    }

    /// Stores a piece; returns `true` if it completes the message.
    pub fn write(&self, at: usize, bytes: Bytes) -> bool {
        let mut state = self.lock();
        state.out_of_order.insert(at, bytes);
        loop {
            let next = state.received_len;
            let Some(bytes) = state.out_of_order.remove(&next) else {
                return state.received_len == self.len;
            };
            state.append(&bytes, self.len);
        }
    }

    /// Hands the complete message to its readers.
    ///
    /// Call this once. A message that is dropped without it is discarded.
    pub fn finish(&self, readers: &[ProcId]) -> ReceiveResult {
        let mut state = self.lock();
        match std::mem::replace(&mut state.place, Place::Plain(Vec::new())) {
            Place::Shared { pool, index, memory: Some(memory) } if !readers.is_empty() => {
                ReceiveResult::Shared(pool.publish((index, memory), self.len, readers))
            }
            Place::Shared { pool, index, memory } => {
                let bytes = memory.as_ref().map_or_else(Vec::new, |memory| memory.read(self.len));
                pool.put_back(index, memory);
                ReceiveResult::Plain(bytes.into())
            }
            Place::Plain(bytes) => ReceiveResult::Plain(bytes.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn append(&mut self, bytes: &[u8], len: usize) {
        let at = self.received_len;
        self.received_len += bytes.len();
        match &mut self.place {
            Place::Plain(all) => all.extend_from_slice(bytes),
            Place::Shared { pool, index, memory } => {
                if pool.append(memory, (at, len), bytes).is_ok() {
                    return;
                }
                // The kernel has no more memory of this kind, but the bytes that have arrived must
                // not be lost.
                let mut all = memory.as_ref().map_or_else(Vec::new, |memory| memory.read(at));
                all.extend_from_slice(bytes);
                pool.put_back(*index, memory.take());
                self.place = Place::Plain(all);
            }
        }
    }
}

impl Drop for DirectReceive {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Place::Shared { pool, index, memory } = &mut state.place {
            pool.put_back(*index, memory.take());
        }
    }
}

impl fmt::Debug for DirectReceive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectReceive").field("len", &self.len).finish_non_exhaustive()
    }
}
