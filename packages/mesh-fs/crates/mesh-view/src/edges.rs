//! Cache of partially read chunks. The next read of a file usually needs the rest of the chunk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;

/// Enough for a few chunks per reader, with many readers.
const KEPT_MAX: usize = 32;

/// The chunks that were most recently read in part.
#[derive(Default)]
pub(crate) struct Edges {
    kept: Mutex<VecDeque<(ChunkId, Arc<[u8]>)>>,
}

impl Edges {
    /// Returns a chunk, if it is cached.
    pub(crate) fn get(&self, id: &ChunkId) -> Option<Arc<[u8]>> {
        let kept = self.kept();
        kept.iter().find(|(other, _)| other == id).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Adds a chunk, and removes the oldest one if the cache is full.
    pub(crate) fn keep(&self, id: ChunkId, bytes: Arc<[u8]>) {
        let mut kept = self.kept();
        if kept.len() == KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((id, bytes));
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(ChunkId, Arc<[u8]>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
