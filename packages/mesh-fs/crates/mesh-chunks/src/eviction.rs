//! Keeping the folder within its budget by evicting the least recently used packs.

use crate::folder::{PackName, Part, Purpose, length_of, modified_at, try_lock_pack};
use crate::locks::writing;
use crate::store::Store;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// A pack in the folder, as described by the metadata of its files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackUsage {
    name: PackName,
    /// When the pack was last used: seconds and nanoseconds.
    used_at: (i64, i64),
    /// Length of both files together, in bytes.
    pub(crate) bytes: u64,
}

impl Store {
    /// Evicts packs if `bytes` more bytes would exceed the budget.
    ///
    /// The folder is measured only now and then. The bytes that this store may write until the next
    /// measurement are counted as if they were written already.
    pub(crate) fn evict_for(&self, bytes: u64) {
        let stride = self.options.stride();
        let unmeasured = self.unmeasured.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if unmeasured < stride {
            return;
        }
        let allowed = self.options.budget_bytes.saturating_sub(stride.saturating_add(bytes));
        // If packs cannot be evicted now, the next write tries again.
        if let Ok(true) = self.remove_beyond(allowed) {
            self.unmeasured.store(0, Relaxed);
        }
    }

    /// Evicts packs until at most `allowed` bytes remain. Returns false if another process is
    /// evicting.
    fn remove_beyond(&self, allowed: u64) -> io::Result<bool> {
        let Some(_lock) = self.folder.lock_removal()? else { return Ok(false) };
        let mut pack_usages = self.pack_usages()?;
        let mut bytes: u64 = pack_usages.iter().map(|pack| pack.bytes).sum();
        if bytes <= allowed {
            return Ok(true);
        }
        pack_usages.sort_unstable_by_key(|pack| (pack.used_at, pack.name));
        let mut removed = HashSet::new();
        for pack in pack_usages {
            if bytes <= allowed {
                break;
            }
            // If one pack cannot be removed, continue with the others.
            if self.remove_unwritten(pack.name).unwrap_or(false) {
                removed.insert(pack.name);
                bytes = bytes.saturating_sub(pack.bytes);
            }
        }
        self.evicted.fetch_add(removed.len() as u64, Relaxed);
        writing(&self.catalogue).forget(|pack| removed.contains(&pack.name));
        Ok(true)
    }

    /// Removes a pack unless a process is appending to it; returns whether the pack no longer
    /// exists.
    fn remove_unwritten(&self, name: PackName) -> io::Result<bool> {
        let Some(chunks) = self.folder.file(name, Part::Chunks, Purpose::Write)? else {
            // The chunk file is created before the index, so it will not be created any more.
            return self.folder.remove(name, Part::Index).map(|()| true);
        };
        if !try_lock_pack(&chunks)? {
            return Ok(false);
        }
        self.folder.remove_pack(name).map(|()| true)
    }

    /// Returns all packs in the folder, including incomplete packs with only one of the files.
    pub(crate) fn pack_usages(&self) -> io::Result<Vec<PackUsage>> {
        let names: HashSet<_> = self.folder.list()?.into_iter().map(|(name, _)| name).collect();
        let mut pack_usages = Vec::with_capacity(names.len());
        for name in names {
            let chunks = self.folder.stat(name, Part::Chunks)?;
            let index = self.folder.stat(name, Part::Index)?;
            // If one of the files is missing, the other one is useless and evicted first.
            let used_at = chunks.and(index).map_or((0, 0), |index| modified_at(&index));
            let bytes = chunks.iter().chain(&index).map(length_of).sum();
            pack_usages.push(PackUsage { name, used_at, bytes });
        }
        Ok(pack_usages)
    }
}
