//! Public interface of the store.

use crate::catalogue::Catalogue;
use crate::error::StoreError;
use crate::folder::Folder;
use crate::id::ChunkId;
use crate::locks::reading;
use crate::options::StoreOptions;
use crate::pack::OpenPacks;
use crate::page_cache::PageCacheEvictor;
use crate::reading::Scratch;
use crate::scan::ScanState;
use crate::writer_pool::WriterPool;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

/// Chunks on disk, shared with other processes of the same user.
///
/// All methods are thread-safe. The store also finds chunks that other processes have written: if a
/// chunk is unknown, it scans the folder again.
#[derive(Debug)]
pub struct Store {
    pub(crate) folder: Arc<Folder>,
    pub(crate) options: StoreOptions,
    pub(crate) catalogue: RwLock<Catalogue>,
    /// Locked by the thread that scans the folder or begins a pack. Lock order: this lock, the
    /// progress of a pack, the catalogue.
    pub(crate) scan_state: Mutex<ScanState>,
    /// Number of scans that were started.
    pub(crate) scans: AtomicU64,
    pub(crate) open_packs: OpenPacks,
    pub(crate) scratch: Scratch,
    pub(crate) page_cache: PageCacheEvictor,
    pub(crate) writers: WriterPool,
    /// Number of bytes that this store has written since it last measured the folder.
    pub(crate) unmeasured: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(crate) evicted: AtomicU64,
    /// Reference point for times in milliseconds.
    pub(crate) opened_at: Instant,
}

/// Contents and statistics of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Total length of packs and indexes in bytes.
    pub bytes: u64,
    /// Number of known chunks.
    pub chunks: u64,
    /// Number of packs.
    pub packs: u64,
    /// Number of damaged chunks that this store has found since it was opened.
    pub damaged: u64,
    /// Number of packs that this store has evicted since it was opened.
    pub evicted: u64,
    /// Number of times this store has scanned the folder for changes of other processes.
    pub scans: u64,
}

impl Store {
    /// Opens the store in a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] and [`StoreError::Exposed`]: other users could write to the folder;
    /// [`StoreError::System`]: the folder cannot be created or read.
    pub fn open(folder: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let store = Self {
            folder: Arc::new(Folder::open(folder)?),
            options,
            catalogue: RwLock::default(),
            scan_state: Mutex::default(),
            scans: AtomicU64::new(0),
            open_packs: OpenPacks::default(),
            scratch: Scratch::default(),
            page_cache: PageCacheEvictor::default(),
            writers: WriterPool::default(),
            // The existing contents may exceed the budget already.
            unmeasured: AtomicU64::new(options.stride()),
            damaged: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            opened_at: Instant::now(),
        };
        store.scan().map_err(|source| store.folder.failed("list the packs", source))?;
        Ok(store)
    }

    /// Returns whether the store contains a chunk. The chunk is not read or verified.
    pub fn has(&self, id: &ChunkId) -> bool {
        self.missing(std::slice::from_ref(id)).is_empty()
    }

    /// Returns the indices of the `ids` that are not in the store.
    ///
    /// The folder is scanned once for any number of ids, and not at all if none is missing.
    pub fn missing(&self, ids: &[ChunkId]) -> Vec<usize> {
        let mut missing: Vec<usize> = {
            let catalogue = reading(&self.catalogue);
            (0..ids.len()).filter(|at| !catalogue.has(&ids[*at])).collect()
        };
        if !missing.is_empty() {
            self.rescan();
            let catalogue = reading(&self.catalogue);
            missing.retain(|at| !catalogue.has(&ids[*at]));
        }
        missing
    }

    /// Returns the length of a chunk in bytes, if the store contains it.
    pub fn length(&self, id: &ChunkId) -> Option<u32> {
        self.find(id).map(|(_, location)| location.length)
    }

    /// Returns the current contents and statistics.
    pub fn usage(&self) -> Usage {
        self.rescan();
        let (chunks, packs) = reading(&self.catalogue).counts();
        let pack_usages = self.pack_usages().unwrap_or_default();
        Usage {
            bytes: pack_usages.iter().map(|pack| pack.bytes).sum(),
            chunks: chunks as u64,
            packs: packs as u64,
            damaged: self.damaged.load(Relaxed),
            evicted: self.evicted.load(Relaxed),
            scans: self.scans.load(Relaxed),
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
