//! The part of the store that writes chunks.

use crate::CHUNK_BYTES_MAX;
use crate::error::StoreError;
use crate::folder::PackName;
use crate::id::ChunkId;
use crate::locks::{lock, reading, writing};
use crate::pack::{Pack, Stage};
use crate::record::RECORD_BYTES;
use crate::store::Store;
use crate::writer::{Files, Writer, fitting};
use crate::writer_pool::WriterLease;
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Maximum number of attempts to create a pack. An attempt fails only if another process removes
/// the new pack before it is locked.
const NAMES_MAX: usize = 8;

impl Store {
    /// Adds a chunk to the store, unless the store contains it already.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`]: the bytes do not match the id; [`StoreError::Length`]: the chunk
    /// is empty or too long; [`StoreError::Full`] and [`StoreError::System`]: the chunk cannot be
    /// written. On an error the store is unchanged.
    pub fn put(&self, id: ChunkId, bytes: &[u8]) -> Result<(), StoreError> {
        check_length(bytes)?;
        // Verify even if the store contains the chunk: the caller may continue to use these bytes.
        let found = ChunkId::of(bytes);
        if found != id {
            return Err(StoreError::Mismatch { id, found });
        }
        self.put_verified(&[(id, bytes)])
    }

    /// Adds the chunks that the store does not contain, with few system calls.
    ///
    /// The caller has verified that the bytes match the ids. If one does not, it is reported as
    /// damaged when it is read.
    ///
    /// # Errors
    /// [`StoreError::Length`]: a chunk is empty or too long, and none was added;
    /// [`StoreError::Full`] and [`StoreError::System`]: some of the chunks cannot be written.
    pub fn put_verified(&self, chunks: &[(ChunkId, &[u8])]) -> Result<(), StoreError> {
        chunks.iter().try_for_each(|(_, bytes)| check_length(bytes))?;
        let fresh = self.fresh(chunks);
        let mut rest = &fresh[..];
        while !rest.is_empty() {
            let count = self.write_some(&mut self.writers.acquire(), rest)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Returns the chunks that are not known, without duplicates. The others count as used now.
    fn fresh<'a>(&self, chunks: &[(ChunkId, &'a [u8])]) -> Vec<(ChunkId, &'a [u8])> {
        let mut seen = HashSet::new();
        let mut used: Vec<Arc<Pack>> = Vec::new();
        let catalogue = reading(&self.catalogue);
        let mut fresh = chunks.to_vec();
        fresh.retain(|(id, _)| {
            let known = catalogue.find(id);
            let is_known = known.is_some();
            used.extend(known.map(|(pack, _)| pack));
            !is_known && (chunks.len() == 1 || seen.insert(*id))
        });
        drop(catalogue);
        used.iter().for_each(|pack| self.note_use(pack));
        fresh
    }

    /// Appends chunks, from the first one, to one pack; returns how many.
    fn write_some(
        &self,
        lease: &mut WriterLease<'_>,
        chunks: &[(ChunkId, &[u8])],
    ) -> Result<usize, StoreError> {
        let limit = self.options.pack_limit();
        // Another process may have removed this pack despite its lock.
        lease.writer.take_if(|writer| !reading(&self.catalogue).is_listed(&writer.pack));
        if let Some(full) = lease.writer.take_if(|writer| writer.fitting(chunks, limit) == 0) {
            full.seal();
        }
        let count = match &lease.writer {
            Some(writer) => writer.fitting(chunks, limit),
            None => fitting(chunks, limit).max(1),
        };
        let bytes = bytes_of(&chunks[..count]);
        self.evict_for(bytes);
        let failed = |doing, error| self.write_failed(doing, bytes, error);
        let writer = match &mut lease.writer {
            Some(writer) => writer,
            None => {
                let begun = self.begin_pack(chunks).map_err(|error| failed("begin a pack", error));
                lease.writer.insert(begun?)
            }
        };
        let count = writer.fitting(chunks, limit);
        let mut locations = Vec::new();
        let written = writer.append(&chunks[..count], &mut locations);
        writing(&self.catalogue).add_chunks(&writer.pack, locations);
        written.map(|()| count).map_err(|error| failed("write to a pack", error))
    }

    /// Takes over a pack that has no writer, or creates one, so that at least the first chunk fits.
    fn begin_pack(&self, chunks: &[(ChunkId, &[u8])]) -> io::Result<Writer> {
        self.rescan();
        // Held so that no other thread lists the new pack before it is registered.
        let scan_state = lock(&self.scan_state);
        for pack in self.growing(&scan_state) {
            // If a pack cannot be taken over, create another one.
            if let Ok(Some(writer)) = self.take_over(&pack, chunks) {
                return Ok(writer);
            }
        }
        for _ in 0..NAMES_MAX {
            let name = PackName::random()?;
            if let Some(files) = Files::create(&self.folder, name)? {
                let pack = writing(&self.catalogue).add_pack(name, Stage::Ours);
                return Ok(Writer::new(&self.folder, &pack, files));
            }
        }
        Err(io::Error::other("new packs are removed at once"))
    }

    fn take_over(
        &self,
        pack: &Arc<Pack>,
        chunks: &[(ChunkId, &[u8])],
    ) -> io::Result<Option<Writer>> {
        let mut progress = lock(&pack.progress);
        if progress.stage != Stage::Growing {
            return Ok(None);
        }
        let Some(files) = Files::take_over(&self.folder, pack)? else { return Ok(None) };
        // Records may have been added after the scan.
        self.read_index(pack, &mut progress)?;
        if progress.stage != Stage::Growing || !reading(&self.catalogue).is_listed(pack) {
            return Ok(None);
        }
        progress.stage = Stage::Ours;
        drop(progress);
        let writer = Writer::new(&self.folder, pack, files);
        if writer.fitting(chunks, self.options.pack_limit()) > 0 {
            return Ok(Some(writer));
        }
        writer.seal();
        Ok(None)
    }

    fn write_failed(&self, doing: &'static str, bytes: u64, source: io::Error) -> StoreError {
        let full = [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error()));
        if full.contains(&source.raw_os_error()) {
            let folder = self.folder.path().to_owned();
            return StoreError::Full { folder, bytes, source };
        }
        self.folder.failed(doing, source)
    }
}

fn check_length(bytes: &[u8]) -> Result<(), StoreError> {
    let length = bytes.len();
    if (1..=CHUNK_BYTES_MAX).contains(&length) {
        Ok(())
    } else {
        Err(StoreError::Length { length })
    }
}

/// Returns the number of bytes that these chunks need, including their records.
fn bytes_of(chunks: &[(ChunkId, &[u8])]) -> u64 {
    chunks.iter().map(|(_, bytes)| (bytes.len() + RECORD_BYTES) as u64).sum()
}
