//! Keeping the folder within its budget: what was not used for longest goes.

use crate::folder::{PackName, Part, Purpose, length_of, modified_at, try_lock_pack};
use crate::locks::writing;
use crate::store::Store;
use std::collections::HashSet;
use std::io;
use std::sync::atomic::Ordering::Relaxed;

/// A pack in the folder, as its files say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parcel {
    name: PackName,
    /// When it was last used: seconds, and nanoseconds.
    used_at: (i64, i64),
    /// How long both of its files are together.
    pub(crate) bytes: u64,
}

impl Store {
    /// Removes packs if so many more bytes are too many.
    ///
    /// The folder is measured now and then; what may be written until the next time, here, is
    /// counted as if it were there.
    pub(crate) fn make_room(&self, bytes: u64) {
        let stride = self.options.stride();
        let unmeasured = self.unmeasured.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if unmeasured < stride {
            return;
        }
        let allowed = self.options.budget_bytes.saturating_sub(stride.saturating_add(bytes));
        // If it cannot be done now, the next one to write tries again.
        if let Ok(true) = self.remove_beyond(allowed) {
            self.unmeasured.store(0, Relaxed);
        }
    }

    /// Removes packs until no more bytes than that are left; false if somebody else is at it.
    fn remove_beyond(&self, allowed: u64) -> io::Result<bool> {
        let Some(_lock) = self.folder.lock_removal()? else { return Ok(false) };
        let mut parcels = self.parcels()?;
        let mut bytes: u64 = parcels.iter().map(|parcel| parcel.bytes).sum();
        if bytes <= allowed {
            return Ok(true);
        }
        parcels.sort_unstable_by_key(|parcel| (parcel.used_at, parcel.name));
        let mut removed = HashSet::new();
        for parcel in parcels {
            if bytes <= allowed {
                break;
            }
            // One that cannot be removed is no reason to keep the others.
            if self.remove_unwritten(parcel.name).unwrap_or(false) {
                removed.insert(parcel.name);
                bytes = bytes.saturating_sub(parcel.bytes);
            }
        }
        self.evicted.fetch_add(removed.len() as u64, Relaxed);
        writing(&self.catalogue).forget(|pack| removed.contains(&pack.name));
        Ok(true)
    }

    /// Removes a pack unless somebody adds to it; tells whether it is gone.
    fn remove_unwritten(&self, name: PackName) -> io::Result<bool> {
        let Some(chunks) = self.folder.file(name, Part::Chunks, Purpose::Write)? else {
            // The chunks are made before the index, and so are not to come any more.
            return self.folder.remove(name, Part::Index).map(|()| true);
        };
        if !try_lock_pack(&chunks)? {
            return Ok(false);
        }
        self.folder.remove_pack(name).map(|()| true)
    }

    /// All packs in the folder, also those of which a file is missing.
    pub(crate) fn parcels(&self) -> io::Result<Vec<Parcel>> {
        let names: HashSet<_> = self.folder.list()?.into_iter().map(|(name, _)| name).collect();
        let mut parcels = Vec::with_capacity(names.len());
        for name in names {
            let chunks = self.folder.stat(name, Part::Chunks)?;
            let index = self.folder.stat(name, Part::Index)?;
            // Without one of them the other is of no use, and the first to go.
            let used_at = chunks.and(index).map_or((0, 0), |index| modified_at(&index));
            let bytes = chunks.iter().chain(&index).map(length_of).sum();
            parcels.push(Parcel { name, used_at, bytes });
        }
        Ok(parcels)
    }
}
