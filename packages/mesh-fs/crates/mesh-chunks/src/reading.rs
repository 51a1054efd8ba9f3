//! The part of the store that reads chunks.

use crate::catalogue::Location;
use crate::error::StoreError;
use crate::folder::{Part, Purpose};
use crate::id::ChunkId;
use crate::locks::{lock, reading, writing};
use crate::pack::Pack;
use crate::record::{RECORD_BYTES, Record};
use crate::scan::read_fully;
use crate::store::Store;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Maximum number of locations at which a chunk is tried. The next one is tried only if a copy is
/// damaged or removed.
const PLACES_MAX: usize = 4;
/// Interval at which the use of a pack is recorded.
const TOUCH_INTERVAL_MS: u64 = 5_000;
/// Interval at which a store that is read scans for removed packs.
///
/// The space of a removed pack is not freed while the store has its file open.
const SCAN_INTERVAL_MS: u64 = 10_000;
/// Maximum number of buffers that are kept for threads that read parts of chunks.
const SCRATCH_MAX: usize = 8;

/// Reusable buffers for reads of parts of chunks.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// At most `SCRATCH_MAX`.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Store {
    /// Reads a chunk. Returns `None` if the chunk is missing or damaged.
    ///
    /// # Errors
    /// [`StoreError::System`]: the pack cannot be opened or read.
    pub fn get(&self, id: &ChunkId) -> Result<Option<Vec<u8>>, StoreError> {
        let mut bytes = Vec::new();
        let is_there = self.read_verified(id, self.options.keep_cached, |file, location| {
            bytes = read_new(file, location)?;
            Ok(id.fits(&bytes))
        })?;
        Ok(is_there.then_some(bytes))
    }

    /// Reads a part of a chunk, starting at byte `start`. Returns false if the chunk is missing or
    /// damaged.
    ///
    /// The whole chunk is verified in any case. Reading all of it is fastest because its bytes are
    /// read directly into the buffer. If the result is false, the buffer is either unchanged or
    /// filled with zeros.
    ///
    /// # Errors
    /// [`StoreError::Range`]: the range exceeds the chunk; [`StoreError::System`]: the pack cannot
    /// be opened or read.
    pub fn read(&self, id: &ChunkId, start: usize, into: &mut [u8]) -> Result<bool, StoreError> {
        let Some((_, Location { length, .. })) = self.find(id) else { return Ok(false) };
        let end = start.saturating_add(into.len());
        if end > length as usize {
            return Err(StoreError::Range { id: *id, start, end, length });
        }
        self.read_verified(id, self.options.keep_cached, |file, location| {
            if start == 0 && into.len() == location.length as usize {
                read_into(id, file, location, into)
            } else {
                self.read_part(id, file, location, start, into)
            }
        })
    }

    /// Reads a whole chunk as [`read`](Self::read) does, and keeps it in the system's page cache.
    ///
    /// Use this to serve other hosts: readers on this host may still need the cached pages. It
    /// ignores [`StoreOptions::keep_cached`](crate::StoreOptions::keep_cached).
    ///
    /// # Errors
    /// The same as for `read`.
    pub fn read_keeping_cached(&self, id: &ChunkId, into: &mut [u8]) -> Result<bool, StoreError> {
        let Some((_, Location { length, .. })) = self.find(id) else { return Ok(false) };
        if into.len() != length as usize {
            return Err(StoreError::Range { id: *id, start: 0, end: into.len(), length });
        }
        self.read_verified(id, true, |file, location| read_into(id, file, location, into))
    }

    fn read_part(
        &self,
        id: &ChunkId,
        file: &OwnedFd,
        location: Location,
        start: usize,
        into: &mut [u8],
    ) -> io::Result<bool> {
        let length = location.length as usize;
        let mut buffer = self.scratch.take();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        let whole = &mut buffer[..length];
        let is_good = read_into(id, file, location, whole)?;
        let part = whole.get(start..).and_then(|rest| rest.get(..into.len()));
        if let Some(part) = part.filter(|_| is_good) {
            into.copy_from_slice(part);
        }
        self.scratch.give_back(buffer);
        Ok(is_good)
    }

    /// Locates a chunk. If it is unknown, scans the folder first.
    pub(crate) fn find(&self, id: &ChunkId) -> Option<(Arc<Pack>, Location)> {
        let found = reading(&self.catalogue).find(id);
        found.or_else(|| {
            self.rescan();
            reading(&self.catalogue).find(id)
        })
    }

    /// Reads a chunk with a function that returns whether the bytes are correct. A damaged copy is
    /// dropped, and the next known copy is read.
    fn read_verified(
        &self,
        id: &ChunkId,
        keep_cached: bool,
        mut read: impl FnMut(&OwnedFd, Location) -> io::Result<bool>,
    ) -> Result<bool, StoreError> {
        for _ in 0..PLACES_MAX {
            let Some((pack, location)) = self.find(id) else { return Ok(false) };
            let file = self.open_packs.open(&self.folder, &pack);
            let Some(file) = file.map_err(|source| self.folder.failed("open a pack", source))?
            else {
                self.forget(&pack);
                continue;
            };
            let result = read(&file, location);
            if !keep_cached {
                self.page_cache.add(&pack, &file, location);
            }
            match result {
                Ok(true) => {
                    self.note_use(&pack);
                    return Ok(true);
                }
                Ok(false) => self.drop_damaged(id, &pack, location),
                // The disk cannot read the data (EIO). Another copy may be readable.
                Err(error) if error.raw_os_error() == Some(Errno::IO.raw_os_error()) => {
                    self.drop_damaged(id, &pack, location);
                }
                Err(error) => return Err(self.folder.failed("read a pack", error)),
            }
        }
        Ok(false)
    }

    /// Records, at most once per interval, that a pack is in use.
    ///
    /// Less recently used packs are evicted first.
    pub(crate) fn note_use(&self, pack: &Pack) {
        let now = self.now_ms();
        if !pack.is_touch_due(now, TOUCH_INTERVAL_MS) {
            return;
        }
        // If the time cannot be recorded, the pack is at worst evicted too early.
        if let Ok(false) = self.folder.touch(pack.name) {
            self.forget(pack);
        }
        if now >= lock(&self.scan_state).scanned_ms.saturating_add(SCAN_INTERVAL_MS) {
            self.rescan();
        }
    }

    /// Removes a damaged chunk from the catalogue and invalidates its record.
    ///
    /// Stores that are opened later therefore ignore the chunk. Stores that are open already detect
    /// the damage themselves when they read it.
    fn drop_damaged(&self, id: &ChunkId, pack: &Pack, location: Location) {
        if writing(&self.catalogue).remove_chunk(id, location) {
            self.damaged.fetch_add(1, Relaxed);
            // If this write fails, others detect the damage themselves.
            let _ = self.write_dropped(id, pack, location);
        }
    }

    fn write_dropped(&self, id: &ChunkId, pack: &Pack, location: Location) -> io::Result<()> {
        let Some(index) = self.folder.file(pack.name, Part::Index, Purpose::Write)? else {
            return Ok(());
        };
        let at = u64::from(location.record) * RECORD_BYTES as u64;
        let mut bytes = [0; RECORD_BYTES];
        let length = read_fully(&index, &mut bytes, at)?;
        let Location { offset, length: chunk_bytes, .. } = location;
        let ours = Record::Chunk { id: *id, offset, length: chunk_bytes };
        if length == RECORD_BYTES && Record::decode(&bytes) == Some(ours) {
            // Overwrite the record in place: appending needs a lock that another process may hold,
            // and the disk may be full.
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

/// Reads a whole chunk into a buffer; returns whether its bytes are correct.
fn read_into(
    id: &ChunkId,
    file: &OwnedFd,
    location: Location,
    into: &mut [u8],
) -> io::Result<bool> {
    let length = read_fully(file, into, u64::from(location.offset));
    let is_good = length.as_ref().is_ok_and(|read| *read == into.len()) && id.fits(into);
    if !is_good {
        // Clear the buffer so that incorrect bytes cannot be mistaken for the chunk.
        into.fill(0);
    }
    length.map(|_| is_good)
}

/// Reads as much of a chunk as the file contains, into memory that is not initialized first.
fn read_new(file: &OwnedFd, location: Location) -> io::Result<Vec<u8>> {
    let length = location.length as usize;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        let offset = u64::from(location.offset) + bytes.len() as u64;
        match rustix::io::pread(file, spare_capacity(&mut bytes), offset) {
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
    // `spare_capacity` may exceed the requested length.
    bytes.truncate(length);
    Ok(bytes)
}
