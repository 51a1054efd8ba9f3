//! Cache of partially read chunks. The next read of a file usually needs the rest of the chunk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;

/// Enough for a few chunks per reader, with many readers.
const CHUNKS_MAX: usize = 32;

/// The chunks that were most recently read in part.
#[derive(Default)]
pub(crate) struct PartialChunks {
    chunks: Mutex<VecDeque<(ChunkId, Arc<[u8]>)>>,
}

impl PartialChunks {
    /// Returns a chunk, if it is cached.
    pub(crate) fn get(&self, id: &ChunkId) -> Option<Arc<[u8]>> {
        let chunks = self.chunks();
        chunks.iter().find(|(other, _)| other == id).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Adds a chunk, and removes the oldest one if the cache is full.
    pub(crate) fn put(&self, id: ChunkId, bytes: Arc<[u8]>) {
        let mut chunks = self.chunks();
        if chunks.len() == CHUNKS_MAX {
            chunks.pop_front();
        }
        chunks.push_back((id, bytes));
    }

    fn chunks(&self) -> MutexGuard<'_, VecDeque<(ChunkId, Arc<[u8]>)>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
