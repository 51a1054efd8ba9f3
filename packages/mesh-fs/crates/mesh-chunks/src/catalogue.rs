//! Which chunk lies where, as far as this process has seen.

use crate::folder::PackName;
use crate::id::{ChunkId, IdHasher};
use crate::pack::{Pack, Stage};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

/// Where a chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The pack's number in the catalogue.
    pub(crate) pack: u32,
    /// Which of the index's records says so.
    pub(crate) record: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// All chunks that are known, and the packs in which they lie.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    chunks: HashMap<ChunkId, Place, BuildHasherDefault<IdHasher>>,
    packs: HashMap<u32, Arc<Pack>>,
    /// The number of the next pack; none is given twice.
    next: u32,
}

impl Catalogue {
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.chunks.contains_key(id)
    }

    pub(crate) fn place(&self, id: &ChunkId) -> Option<Place> {
        self.chunks.get(id).copied()
    }

    pub(crate) fn find(&self, id: &ChunkId) -> Option<(Arc<Pack>, Place)> {
        let place = self.place(id)?;
        Some((Arc::clone(self.packs.get(&place.pack)?), place))
    }

    pub(crate) fn is_listed(&self, pack: &Pack) -> bool {
        self.packs.contains_key(&pack.number)
    }

    /// How many chunks and packs there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.chunks.len(), self.packs.len())
    }

    pub(crate) fn names(&self) -> HashSet<PackName> {
        self.packs.values().map(|pack| pack.name).collect()
    }

    pub(crate) fn packs(&self) -> impl Iterator<Item = &Arc<Pack>> {
        self.packs.values()
    }

    /// Makes a pack known, which it was not.
    pub(crate) fn add_pack(&mut self, name: PackName, stage: Stage) -> Arc<Pack> {
        let pack = Arc::new(Pack::new(name, self.next, stage));
        self.next += 1;
        self.packs.insert(pack.number, Arc::clone(&pack));
        pack
    }

    /// Makes chunks of one pack known, unless it was forgotten meanwhile.
    ///
    /// A chunk that lies elsewhere too is from now on read from here: it was put twice because the
    /// other is damaged or was about to go.
    pub(crate) fn add_chunks(
        &mut self,
        pack: &Pack,
        chunks: impl IntoIterator<Item = (ChunkId, Place)>,
    ) {
        if self.is_listed(pack) {
            self.chunks.extend(chunks);
        }
    }

    /// Forgets one chunk if it is still there; tells whether it was.
    pub(crate) fn remove_chunk(&mut self, id: &ChunkId, place: Place) -> bool {
        let is_there = self.place(id) == Some(place);
        if is_there {
            self.chunks.remove(id);
        }
        is_there
    }

    /// Forgets packs that are gone, and all chunks in them.
    pub(crate) fn forget(&mut self, are_gone: impl Fn(&Pack) -> bool) {
        let before = self.packs.len();
        self.packs.retain(|_, pack| !are_gone(pack));
        if self.packs.len() < before {
            self.chunks.retain(|_, place| self.packs.contains_key(&place.pack));
        }
    }
}
