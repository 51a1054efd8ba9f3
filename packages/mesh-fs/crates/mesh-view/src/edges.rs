//! Chunks of which a read has needed a part: the next read of the file mostly needs the rest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;

/// A few for each reader, with many readers.
const KEPT_MAX: usize = 32;

/// The chunks that were last needed in part.
#[derive(Default)]
pub(crate) struct Edges {
    kept: Mutex<VecDeque<(ChunkId, Arc<[u8]>)>>,
}

impl Edges {
    /// Gives a chunk, if it is one of them.
    pub(crate) fn get(&self, id: &ChunkId) -> Option<Arc<[u8]>> {
        let kept = self.kept();
        kept.iter().find(|(other, _)| other == id).map(|(_, bytes)| Arc::clone(bytes))
    }

    /// Keeps a chunk, and forgets the one that was kept for longest.
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
