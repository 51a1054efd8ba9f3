//! The half of the store that reads.

use crate::catalogue::Place;
use crate::error::StoreError;
use crate::folder::{Part, Purpose};
use crate::id::ChunkId;
use crate::locks::{lock, reading, writing};
use crate::looking::read_fully;
use crate::pack::Pack;
use crate::record::{RECORD_BYTES, Record};
use crate::store::Store;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// In how many places a chunk is tried: a further one only if the last is damaged or gone.
const PLACES_MAX: usize = 4;
/// How often the use of a pack is recorded.
const TOUCH_INTERVAL_MS: u64 = 5_000;
/// A store that is read looks this often for packs that are gone, whose space it may still hold.
const LOOK_INTERVAL_MS: u64 = 10_000;
/// How many buffers are kept for the threads that read parts of chunks.
const SCRATCH_MAX: usize = 8;

/// Buffers for chunks of which only a part is wanted.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Never more than `SCRATCH_MAX`.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Store {
    /// Reads a chunk; none if it is not there, or is damaged.
    ///
    /// # Errors
    /// [`StoreError::System`]: the pack cannot be opened or read.
    pub fn get(&self, id: &ChunkId) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = Vec::new();
        let is_there = self.read_verified(id, self.options.keep_cached, |file, place| {
            bytes = read_new(file, place)?;
            Ok(id.fits(&bytes))
        })?;
        Ok(is_there.then_some(bytes))
    }

    /// Reads a part of a chunk, from the byte `start` on; false if it is not there, or is damaged.
    ///
    /// All of the chunk is compared with its name in any case. To read all of it is fastest: its
    /// bytes then go to the buffer at once. When there is none, the buffer is zero or as it was.
    ///
    /// # Errors
    /// [`StoreError::Range`]: the chunk has fewer bytes; [`StoreError::System`]: the pack cannot be
    /// opened or read.
    pub fn read(&self, id: &ChunkId, start: usize, into: &mut [u8]) -> Result<bool, StoreError> {
        let Some((_, Place { length, .. })) = self.find(id) else { return Ok(false) };
        let end = start.saturating_add(into.len());
        if end > length as usize {
            return Err(StoreError::Range { id: *id, start, end, length });
        }
        self.read_verified(id, self.options.keep_cached, |file, place| {
            if start == 0 && into.len() == place.length as usize {
                read_into(id, file, place, into)
            } else {
                self.read_part(id, file, place, start, into)
            }
        })
    }

    /// Reads a whole chunk, as [`read`](Self::read), for somebody else than those that the store is
    /// for: it stays in the system's page cache, where they may need it.
    ///
    /// # Errors
    /// As those of `read`.
    pub fn lend(&self, id: &ChunkId, into: &mut [u8]) -> Result<bool, StoreError> {
        let Some((_, Place { length, .. })) = self.find(id) else { return Ok(false) };
        if into.len() != length as usize {
            return Err(StoreError::Range { id: *id, start: 0, end: into.len(), length });
        }
        self.read_verified(id, true, |file, place| read_into(id, file, place, into))
    }

    fn read_part(
        &self,
        id: &ChunkId,
        file: &OwnedFd,
        place: Place,
        start: usize,
        into: &mut [u8],
    ) -> io::Result<bool> {
        let length = place.length as usize;
        let mut buffer = self.scratch.take();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let whole = &mut buffer[..length];
        let is_good = read_into(id, file, place, whole)?;
        let part = whole.get(start..).and_then(|rest| rest.get(..into.len()));
        if let Some(part) = part.filter(|_| is_good) {
            into.copy_from_slice(part);
        }
        self.scratch.give_back(buffer);
        Ok(is_good)
    }

    /// Where a chunk lies; the folder is looked at if that is not known.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<(Arc<Pack>, Place)> {
        let found = reading(&self.catalogue).find(id);
        found.or_else(|| {
            self.look_again();
            reading(&self.catalogue).find(id)
        })
    }

    /// Has a chunk read that says whether it is right; if not, it is dropped, and read from where
    /// else it may be.
    fn read_verified(
        &self,
        id: &ChunkId,
        keep_cached: bool,
        mut read: impl FnMut(&OwnedFd, Place) -> io::Result<bool>,
    ) -> Result<bool, StoreError> {
        for _ in 0..PLACES_MAX {
            let Some((pack, place)) = self.find(id) else { return Ok(false) };
            let file = self.shelf.open(&self.folder, &pack);
            let Some(file) = file.map_err(|source| self.folder.failed("open a pack", source))?
            else {
                self.forget(&pack);
                continue;
            };
            let result = read(&file, place);
            if !keep_cached {
                self.sweeper.note(&pack, &file, place);
            }
            match result {
                Ok(true) => {
                    self.note_use(&pack);
                    return Ok(true);
                }
                Ok(false) => self.drop_damaged(id, &pack, place),
                // The disk has lost it; elsewhere there may be room for it.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    self.drop_damaged(id, &pack, place);
                }
                Err(error) => return Err(self.folder.failed("read a pack", error)),
            }
        }
        Ok(false)
    }

    /// Says, now and then, that a pack is in use, so that others go before it.
    pub(crate) fn note_use(&self, pack: &Pack) {
        let now = self.now_ms();
        if !pack.is_touch_due(now, TOUCH_INTERVAL_MS) {
            return;
        }
        // A pack that cannot be touched goes too early at worst.
        if let Ok(false) = self.folder.touch(pack.name) {
            self.forget(pack);
        }
        if now >= lock(&self.lookout).looked_ms.saturating_add(LOOK_INTERVAL_MS) {
            self.look_again();
        }
    }

    /// Forgets a damaged chunk, and has all who open the store later do so.
    ///
    /// Those that have it open find out as we did; none gives out what is not right.
    fn drop_damaged(&self, id: &ChunkId, pack: &Pack, place: Place) {
        if writing(&self.catalogue).remove_chunk(id, place) {
            self.damaged.fetch_add(1, Relaxed);
            // If it cannot be written, others find out too.
            let _ = self.write_dropped(id, pack, place);
        }
    }

    fn write_dropped(&self, id: &ChunkId, pack: &Pack, place: Place) -> io::Result<()> {
        let Some(index) = self.folder.file(pack.name, Part::Index, Purpose::Write)? else {
            return Ok(());
        };
        let at = u64::from(place.record) * RECORD_BYTES as u64;
        let mut bytes = [0; RECORD_BYTES];
        let length = read_fully(&index, &mut bytes, at)?;
        let Place { offset, length: chunk_bytes, .. } = place;
        let ours = Record::Chunk { id: *id, offset, length: chunk_bytes };
        if length == RECORD_BYTES && Record::decode(&bytes) == Some(ours) {
            // In its place: the lock that one needs to add is another's, and the disk may be full.
            rustix::io::pwrite(&index, &Record::Dropped.encode(), at)?;
        }
        Ok(())
    }
}

impl Scratch {
    fn take(&self) -> Vec<u8> {
        lock(&self.buffers).pop().unwrap_or_default()
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut buffers = lock(&self.buffers);
        if buffers.len() < SCRATCH_MAX {
            buffers.push(buffer);
        }
    }
}

/// Reads a whole chunk to where it is wanted; tells whether it is right.
fn read_into(id: &ChunkId, file: &OwnedFd, place: Place, into: &mut [u8]) -> io::Result<bool> {
    let length = read_fully(file, into, u64::from(place.offset));
    let is_good = length.as_ref().is_ok_and(|read| *read == into.len()) && id.fits(into);
    if !is_good {
        // Nobody shall take for the chunk what is not.
        into.fill(0);
    }
    length.map(|_| is_good)
}

/// Reads what there is of a chunk, to memory that need not be cleared first.
fn read_new(file: &OwnedFd, place: Place) -> io::Result<Vec<u8>> {
    let length = place.length as usize;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let offset = u64::from(place.offset) + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), offset) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
    // There may be memory for more than was asked for.
    bytes.truncate(length);
    Ok(bytes)
}
