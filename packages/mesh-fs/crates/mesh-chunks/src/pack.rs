//! State of a pack in this process.

use crate::folder::{Folder, PackName, Part, Purpose};
use crate::locks::{lock, reading, writing};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// Maximum number of packs that are open for reading. File descriptors are scarce in a process with
/// many connections.
const OPEN_MAX: usize = 128;

/// A pack in the folder.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) name: PackName,
    /// Number of this pack in the catalogue.
    pub(crate) number: u32,
    /// The chunk file, while it is open for reading. `OpenPacks` closes it.
    file: RwLock<Option<Arc<OwnedFd>>>,
    /// Time of the last recorded use, in milliseconds since the store was opened, plus one.
    ///
    /// It is 0 if no use was recorded.
    touched: AtomicU64,
    /// How far the index has been read. Locked by a thread that scans the folder or writes the
    /// pack.
    pub(crate) progress: Mutex<Progress>,
}

/// How far the index of a pack has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Length of the index in bytes when it was last read.
    pub(crate) index_bytes: u64,
    /// Number of records at the start of the index that need not be read again.
    pub(crate) records: u64,
    pub(crate) stage: Stage,
}

/// Whether a pack may still grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Another process may append to the pack.
    Growing,
    /// This store appends to the pack, and knows all its records.
    Ours,
    /// The pack is full and never changes.
    Sealed,
}

/// The packs that are open for reading.
#[derive(Debug, Default)]
pub(crate) struct OpenPacks {
    /// Oldest first, at most `OPEN_MAX`.
    opened: Mutex<VecDeque<Weak<Pack>>>,
}

impl Pack {
    pub(crate) fn new(name: PackName, number: u32, stage: Stage) -> Self {
        Self {
            name,
            number,
            file: RwLock::default(),
            touched: AtomicU64::new(0),
            progress: Mutex::new(Progress { index_bytes: 0, records: 0, stage }),
        }
    }

    /// Returns whether a use at this time must be recorded: one use in each interval.
    pub(crate) fn is_touch_due(&self, now_ms: u64, interval_ms: u64) -> bool {
        let before = self.touched.load(Relaxed);
        (before == 0 || now_ms + 1 >= before + interval_ms)
            && self.touched.compare_exchange(before, now_ms + 1, Relaxed, Relaxed).is_ok()
    }

    fn close(&self) {
        writing(&self.file).take();
    }
}

impl OpenPacks {
    /// Opens the chunk file of a pack, if it still exists.
    pub(crate) fn open(
        &self,
        folder: &Folder,
        pack: &Arc<Pack>,
    ) -> io::Result<Option<Arc<OwnedFd>>> {
        if let Some(file) = reading(&pack.file).as_ref() {
            return Ok(Some(Arc::clone(file)));
        }
        let mut slot = writing(&pack.file);
        if let Some(file) = slot.as_ref() {
            return Ok(Some(Arc::clone(file)));
        }
        let Some(file) = folder.file(pack.name, Part::Chunks, Purpose::Read)? else {
            return Ok(None);
        };
        let file = Arc::new(file);
        *slot = Some(Arc::clone(&file));
        drop(slot);
        self.enter(pack);
        Ok(Some(file))
    }

    fn enter(&self, pack: &Arc<Pack>) {
        let mut opened = lock(&self.opened);
        opened.push_back(Arc::downgrade(pack));
        let oldest = if opened.len() > OPEN_MAX { opened.pop_front() } else { None };
        drop(opened);
        if let Some(pack) = oldest.and_then(|pack| pack.upgrade()) {
            pack.close();
        }
    }
}
