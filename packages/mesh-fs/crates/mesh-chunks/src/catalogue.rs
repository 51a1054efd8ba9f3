//! In-memory index of the chunks that this process knows, with their locations in the packs.

use crate::folder::PackName;
use crate::id::{ChunkId, IdHasher};
use crate::pack::{Pack, Stage};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Location of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    /// Number of the pack in the catalogue.
    pub(crate) pack: u32,
    /// Position of the chunk's record in the index of the pack.
    pub(crate) record: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// All known chunks and the packs that contain them.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    chunks: HashMap<ChunkId, Location, BuildHasherDefault<IdHasher>>,
    packs: HashMap<u32, Arc<Pack>>,
    /// Number of the next pack. Numbers are never reused.
    next: u32,
}

impl Catalogue {
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.chunks.contains_key(id)
    }

    pub(crate) fn location(&self, id: &ChunkId) -> Option<Location> {
        self.chunks.get(id).copied()
    }

    pub(crate) fn find(&self, id: &ChunkId) -> Option<(Arc<Pack>, Location)> {
        let location = self.location(id)?;
        Some((Arc::clone(self.packs.get(&location.pack)?), location))
    }

    pub(crate) fn is_listed(&self, pack: &Pack) -> bool {
        self.packs.contains_key(&pack.number)
    }

    /// Returns the number of chunks and the number of packs.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.chunks.len(), self.packs.len())
    }

    pub(crate) fn names(&self) -> HashSet<PackName> {
        self.packs.values().map(|pack| pack.name).collect()
    }

    pub(crate) fn packs(&self) -> impl Iterator<Item = &Arc<Pack>> {
        self.packs.values()
    }

    /// Adds a pack. The caller ensures that its name is not in the catalogue yet.
    pub(crate) fn add_pack(&mut self, name: PackName, stage: Stage) -> Arc<Pack> {
        let pack = Arc::new(Pack::new(name, self.next, stage));
        self.next += 1;
        self.packs.insert(pack.number, Arc::clone(&pack));
        pack
    }

    /// Adds chunks of one pack, unless the pack was removed from the catalogue.
    ///
    /// If a chunk has another location already, later reads use the new one: the chunk was written
    /// a second time because the first copy is damaged or about to be evicted.
    pub(crate) fn add_chunks(
        &mut self,
        pack: &Pack,
        chunks: impl IntoIterator<Item = (ChunkId, Location)>,
    ) {
        if self.is_listed(pack) {
            self.chunks.extend(chunks);
        }
    }

    /// Removes a chunk if it is still at `location`; returns whether it was.
    pub(crate) fn remove_chunk(&mut self, id: &ChunkId, location: Location) -> bool {
        let is_there = self.location(id) == Some(location);
        if is_there {
            self.chunks.remove(id);
        }
        is_there
    }

    /// Removes all packs for which the predicate returns true, and all chunks in them.
    pub(crate) fn forget(&mut self, are_gone: impl Fn(&Pack) -> bool) {
        let before = self.packs.len();
        self.packs.retain(|_, pack| !are_gone(pack));
        if self.packs.len() < before {
            self.chunks.retain(|_, location| self.packs.contains_key(&location.pack));
        }
    }
}
