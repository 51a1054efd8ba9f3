//! Adding chunks to a pack, which one writer at a time may.

use crate::catalogue::Place;
use crate::folder::{Folder, PackName, Part, Purpose, length_of, try_lock_pack};
use crate::id::ChunkId;
use crate::locks::lock;
use crate::pack::{Pack, Stage};
use crate::record::{RECORD_BYTES, Record};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How many chunks are written by one call at most; the system takes no more pieces.
const PIECES_MAX: usize = 1024;

/// The one that may add to a pack. When it is dropped, another one may.
#[derive(Debug)]
pub(crate) struct Writer {
    folder: Arc<Folder>,
    pub(crate) pack: Arc<Pack>,
    files: Files,
    /// The process that has begun it: in a copy of the process it is another's.
    process: u32,
}

/// The files of a pack that is locked.
#[derive(Debug)]
pub(crate) struct Files {
    chunks: OwnedFd,
    index: OwnedFd,
    /// How long the chunks are.
    end: u64,
    /// How many records the index has.
    records: u64,
}

impl Files {
    /// Makes them for a new pack; false if somebody removes it at once.
    pub(crate) fn create(folder: &Folder, name: PackName) -> io::Result<Option<Self>> {
        let chunks = folder.create(name, Part::Chunks)?;
        if !try_lock_pack(&chunks)? {
            return Ok(None);
        }
        let index = folder.create(name, Part::Index).inspect_err(|_| {
            let _ = folder.remove_pack(name);
        })?;
        Ok(Some(Self { chunks, index, end: 0, records: 0 }))
    }

    /// Takes over those of a pack that nobody adds to, if it is so.
    pub(crate) fn take_over(folder: &Folder, pack: &Pack) -> io::Result<Option<Self>> {
        let Some(chunks) = folder.file(pack.name, Part::Chunks, Purpose::Write)? else {
            return Ok(None);
        };
        if !try_lock_pack(&chunks)? {
            return Ok(None);
        }
        let Some(index) = folder.file(pack.name, Part::Index, Purpose::Write)? else {
            return Ok(None);
        };
        let end = length_of(&rustix::fs::fstat(&chunks)?);
        // Part of a record, which its writer did not live to write to its end, is overwritten.
        let records = length_of(&rustix::fs::fstat(&index)?) / RECORD_BYTES as u64;
        Ok(Some(Self { chunks, index, end, records }))
    }
}

impl Writer {
    /// Adds to a pack from where it ends. Nobody else may write to these files.
    pub(crate) fn new(folder: &Arc<Folder>, pack: &Arc<Pack>, files: Files) -> Self {
        let (folder, pack) = (Arc::clone(folder), Arc::clone(pack));
        Self { folder, pack, files, process: std::process::id() }
    }

    /// How many of these chunks can be added, from the first on.
    pub(crate) fn fitting(&self, chunks: &[(ChunkId, &[u8])], limit: u64) -> usize {
        let used = self.files.end + self.files.records * RECORD_BYTES as u64;
        match fitting(chunks, limit.saturating_sub(used)) {
            0 if used == 0 => 1,
            count => count,
        }
    }

    /// Adds chunks, of which there is at least one; all of them, or none. Gives where they are.
    pub(crate) fn append(
        &mut self,
        chunks: &[(ChunkId, &[u8])],
    ) -> io::Result<Vec<(ChunkId, Place)>> {
        let too_long = || io::Error::from(io::ErrorKind::FileTooLarge);
        let mut places = Vec::with_capacity(chunks.len());
        let mut records = Vec::with_capacity(chunks.len() * RECORD_BYTES);
        let mut end = self.files.end;
        for ((id, bytes), record) in chunks.iter().zip(self.files.records..) {
            let offset = u32::try_from(end).map_err(|_| too_long())?;
            let length = u32::try_from(bytes.len()).map_err(|_| too_long())?;
            let record = u32::try_from(record).map_err(|_| too_long())?;
            places.push((*id, Place { pack: self.pack.number, record, offset, length }));
            records.extend(Record::Chunk { id: *id, offset, length }.encode());
            end += u64::from(length);
        }
        let pieces = chunks.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
        let written = write_fully(&self.files.chunks, pieces, self.files.end)
            .and_then(|()| self.add_records(&records));
        if let Err(error) = written {
            // What is behind the end is nothing; the disk may need its space.
            let _ = rustix::fs::ftruncate(&self.files.chunks, self.files.end);
            let _ =
                rustix::fs::ftruncate(&self.files.index, self.files.records * RECORD_BYTES as u64);
            return Err(error);
        }
        self.files.end = end;
        self.files.records += chunks.len() as u64;
        Ok(places)
    }

    fn add_records(&self, records: &[u8]) -> io::Result<()> {
        let at = self.files.records * RECORD_BYTES as u64;
        write_fully(&self.files.index, vec![IoSlice::new(records)], at)
    }

    /// Says that the pack is full: nobody need look there for more.
    pub(crate) fn seal(self) {
        // If it cannot be said, somebody may try to add to it, and find it full too.
        if self.add_records(&Record::Sealed.encode()).is_ok() {
            lock(&self.pack.progress).stage = Stage::Sealed;
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut progress = lock(&self.pack.progress);
        if progress.stage == Stage::Ours {
            progress.stage = Stage::Growing;
            progress.records = self.files.records;
            progress.index_bytes = self.files.records * RECORD_BYTES as u64;
        }
        drop(progress);
        if self.files.records == 0 && self.process == std::process::id() {
            let _ = self.folder.remove_pack(self.pack.name);
        }
    }
}

/// How many of these chunks go into so many bytes, with their records, and into one call.
pub(crate) fn fitting(chunks: &[(ChunkId, &[u8])], room: u64) -> usize {
    let mut used = 0;
    chunks
        .iter()
        .take(PIECES_MAX)
        .take_while(|(_, bytes)| {
            used += bytes.len() as u64 + RECORD_BYTES as u64;
            used <= room
        })
        .count()
}

fn write_fully(file: impl AsFd, mut pieces: Vec<IoSlice<'_>>, mut at: u64) -> io::Result<()> {
    let mut rest = &mut pieces[..];
    while !rest.is_empty() {
        match rustix::io::pwritev(&file, rest, at) {
            Ok(0) => return Err(Errno::NOSPC.into()),
            Ok(length) => {
                at += length as u64;
                IoSlice::advance_slices(&mut rest, length);
            }
            Err(Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(())
}
