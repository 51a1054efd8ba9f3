//! The store: what others see of it.

use crate::catalogue::Catalogue;
use crate::error::StoreError;
use crate::folder::Folder;
use crate::id::ChunkId;
use crate::locks::reading;
use crate::looking::Lookout;
use crate::options::StoreOptions;
use crate::pack::Shelf;
use crate::reading::Scratch;
use crate::sweeper::Sweeper;
use crate::turn::Turns;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// Chunks on disk, shared with other processes of the same user.
///
/// All methods may be called by several threads at once. A chunk that another process has put is
/// found too: when one is not known, the folder is looked at again.
#[derive(Debug)]
pub struct Store {
    pub(crate) folder: Arc<Folder>,
    pub(crate) options: StoreOptions,
    pub(crate) catalogue: RwLock<Catalogue>,
    /// Held by the thread that looks at the folder, or begins a pack. It is taken before a pack's
    /// progress, and that before the catalogue.
    pub(crate) lookout: Mutex<Lookout>,
    /// How many looks were begun.
    pub(crate) looks: AtomicU64,
    pub(crate) shelf: Shelf,
    pub(crate) scratch: Scratch,
    pub(crate) sweeper: Sweeper,
    pub(crate) turns: Turns,
    /// How many bytes this store has written since it has measured the folder.
    pub(crate) unmeasured: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) evicted: AtomicU64,
    /// Times are told from it.
    pub(crate) opened_at: Instant,
}

/// What is in a store, and what has happened to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How many bytes the packs and their indexes have.
    pub bytes: u64,
    /// How many chunks are known to be there.
    pub chunks: u64,
    /// How many packs they lie in.
    pub packs: u64,
    /// How many damaged chunks this store has found since it was opened.
    pub damaged: u64,
    /// How many packs this store has removed since it was opened, to keep the budget.
    pub evicted: u64,
    /// How often this store has looked at the folder for what others have put there.
    pub looks: u64,
}

impl Store {
    /// Opens the store in a folder, which is made if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] and [`StoreError::Exposed`]: other users could write there;
    /// [`StoreError::System`]: the folder cannot be made or read.
    pub fn open(folder: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let store = Self {
            folder: Arc::new(Folder::open(folder)?),
            options,
            catalogue: RwLock::default(),
            lookout: Mutex::default(),
            looks: AtomicU64::new(0),
            shelf: Shelf::default(),
            scratch: Scratch::default(),
            sweeper: Sweeper::default(),
            turns: Turns::default(),
            // What is there already may be too much.
            unmeasured: AtomicU64::new(options.stride()),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            opened_at: Instant::now(),
        };
        store.look().map_err(|source| store.folder.failed("list the packs", source))?;
        Ok(store)
    }

    /// Whether a chunk is there, as far as is known without reading it.
    pub fn has(&self, id: &ChunkId) -> bool {
        self.missing(std::slice::from_ref(id)).is_empty()
    }

    /// Which of these chunks are not there, by their places in the list.
    ///
    /// However many there are, the folder is looked at once, and not at all if none is missing.
    pub fn missing(&self, ids: &[ChunkId]) -> Vec<usize> {
        let mut missing: Vec<usize> = {
            let catalogue = reading(&self.catalogue);
            (0..ids.len()).filter(|at| !catalogue.has(&ids[*at])).collect()
        };
        if !missing.is_empty() {
            self.look_again();
            let catalogue = reading(&self.catalogue);
            missing.retain(|at| !catalogue.has(&ids[*at]));
        }
        missing
    }

    /// How many bytes a chunk has, if it is there.
    pub fn length(&self, id: &ChunkId) -> Option<u32> {
        self.find(id).map(|(_, place)| place.length)
    }

    /// What is in the store now.
    pub fn usage(&self) -> Usage {
        self.look_again();
        let (chunks, packs) = reading(&self.catalogue).counts();
        let parcels = self.parcels().unwrap_or_default();
        Usage {
            bytes: parcels.iter().map(|parcel| parcel.bytes).sum(),
            chunks: chunks as u64,
            packs: packs as u64,
            damaged: self.damaged.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            looks: self.looks.load(Relaxed),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
