//! The half of the store that writes.

use crate::CHUNK_BYTES_MAX;
use crate::error::StoreError;
use crate::folder::PackName;
use crate::id::ChunkId;
use crate::locks::{lock, reading, writing};
use crate::pack::{Pack, Stage};
use crate::record::RECORD_BYTES;
use crate::store::Store;
use crate::turn::Turn;
use crate::writer::{Files, Writer, fitting};
use rustix::io::Errno;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// How often a new pack's name is tried; others remove one only in the moment of its making.
const NAMES_MAX: usize = 8;

impl Store {
    /// Puts a chunk into the store, if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Mismatch`]: the bytes are those of another chunk; [`StoreError::Length`]: they
    /// are none or too many; [`StoreError::Full`] and [`StoreError::System`]: they cannot be
    /// written. The store is as it was, then.
    pub fn put(&self, id: ChunkId, bytes: &[u8]) -> Result<(), StoreError> {
        check_length(bytes)?;
        // Also if it is there: the caller may go on with these bytes.
        let found = ChunkId::of(bytes);
        if found != id {
            return Err(StoreError::Mismatch { id, found });
        }
        self.put_verified(&[(id, bytes)])
    }

    /// Puts chunks into the store that are not there, in few calls of the system.
    ///
    /// The caller has compared them with their names. If one was wrong, it is found to be damaged
    /// when it is read.
    ///
    /// # Errors
    /// [`StoreError::Length`]: a chunk has no bytes or too many, and none is put;
    /// [`StoreError::Full`] and [`StoreError::System`]: some of them cannot be written.
    pub fn put_verified(&self, chunks: &[(ChunkId, &[u8])]) -> Result<(), StoreError> {
        chunks.iter().try_for_each(|(_, bytes)| check_length(bytes))?;
        let fresh = self.fresh(chunks);
        let mut rest = &fresh[..];
        while !rest.is_empty() {
            let count = self.write_some(&mut self.turns.take(), rest)?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Those that are not known to be there, each once. The others are used by this.
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

    /// Adds chunks to one pack, from the first on; gives how many.
    fn write_some(
        &self,
        turn: &mut Turn<'_>,
        chunks: &[(ChunkId, &[u8])],
    ) -> Result<usize, StoreError> {
        let limit = self.options.pack_limit();
        // Somebody may have removed our pack in spite of its lock.
        turn.writer.take_if(|writer| !reading(&self.catalogue).is_listed(&writer.pack));
        if let Some(full) = turn.writer.take_if(|writer| writer.fitting(chunks, limit) == 0) {
            full.seal();
        }
        let count = match &turn.writer {
            Some(writer) => writer.fitting(chunks, limit),
            None => fitting(chunks, limit).max(1),
        };
        let bytes = bytes_of(&chunks[..count]);
        self.make_room(bytes);
        let failed = |doing, error| self.write_failed(doing, bytes, error);
        let writer = match &mut turn.writer {
            Some(writer) => writer,
            None => {
                let begun = self.begin_pack(chunks).map_err(|error| failed("begin a pack", error));
                turn.writer.insert(begun?)
            }
        };
        let count = writer.fitting(chunks, limit);
        let mut places = Vec::new();
        let written = writer.append(&chunks[..count], &mut places);
        writing(&self.catalogue).add_chunks(&writer.pack, places);
        written.map(|()| count).map_err(|error| failed("write to a pack", error))
    }

    /// Takes over a pack that somebody has left, or makes one; the first of the chunks fits in.
    fn begin_pack(&self, chunks: &[(ChunkId, &[u8])]) -> io::Result<Writer> {
        self.look_again();
        // Held, so that nobody lists the new pack before we do.
        let lookout = lock(&self.lookout);
        for pack in self.growing(&lookout) {
            // One that cannot be had is no reason not to make another.
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
        // Its last records may have come after our look.
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

/// How many bytes these chunks need, with their records.
fn bytes_of(chunks: &[(ChunkId, &[u8])]) -> u64 {
    chunks.iter().map(|(_, bytes)| (bytes.len() + RECORD_BYTES) as u64).sum()
}
