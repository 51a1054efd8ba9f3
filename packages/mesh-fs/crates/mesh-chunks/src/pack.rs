//! One pack, as this process knows it.

use crate::folder::{Folder, PackName, Part, Purpose};
use crate::locks::{lock, reading, writing};
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, RwLock, Weak};

/// How many packs are open for reading at most; files are few in a process of many connections.
const OPEN_MAX: usize = 128;

/// A pack in the folder.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) name: PackName,
    /// What the catalogue calls it.
    pub(crate) number: u32,
    /// Its chunks, while they are open for reading. The shelf closes them.
    file: RwLock<Option<Arc<OwnedFd>>>,
    /// When its use was last recorded, in milliseconds since the store was opened, plus one.
    touched: AtomicU64,
    /// How far its index was read. Whoever looks at the folder locks it, or writes the pack.
    pub(crate) progress: Mutex<Progress>,
}

/// How far the index of a pack was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The index's length when it was last read.
    pub(crate) index_bytes: u64,
    /// The number of records that need not be read again.
    pub(crate) records: u64,
    pub(crate) stage: Stage,
}

/// What may still become of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Another process may add to it.
    Growing,
    /// This store adds to it, and knows what.
    Ours,
    /// Nobody adds to it.
    Sealed,
}

/// The packs that are open for reading.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Oldest first, never more than `OPEN_MAX`.
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

    /// Whether a use at that time is to be recorded: once in each interval.
    pub(crate) fn is_touch_due(&self, now_ms: u64, interval_ms: u64) -> bool {
        let before = self.touched.load(Relaxed);
        (before == 0 || now_ms + 1 >= before + interval_ms)
            && self.touched.compare_exchange(before, now_ms + 1, Relaxed, Relaxed).is_ok()
    }

    fn close(&self) {
        writing(&self.file).take();
    }
}

impl Shelf {
    /// The chunks of a pack, if it is still there.
    pub(crate) fn open(
        &self,
        folder: &Folder,
        pack: &Arc<Pack>,
    ) -> io::Result<Option<Arc<OwnedFd>>> {
        if let Some(file) = reading(&pack.file).as_ref() {
            return Ok(Some(Arc::clone(file)));
        }
        let mut place = writing(&pack.file);
        if let Some(file) = place.as_ref() {
            return Ok(Some(Arc::clone(file)));
        }
        let Some(file) = folder.file(pack.name, Part::Chunks, Purpose::Read)? else {
            return Ok(None);
        };
        let file = Arc::new(file);
        *place = Some(Arc::clone(&file));
        drop(place);
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
