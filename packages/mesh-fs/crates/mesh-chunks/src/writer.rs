//! Appending chunks to a pack. A pack has at most one writer at a time.

use crate::catalogue::Location;
use crate::folder::{Folder, PackName, Part, Purpose, length_of, try_lock_pack};
use crate::id::ChunkId;
use crate::locks::lock;
use crate::pack::{Pack, Stage};
use crate::record::{RECORD_BYTES, Record};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Maximum number of chunks in one write: the kernel's limit for a vectored write.
const PIECES_MAX: usize = 1024;

/// The only writer of a pack. When it is dropped, another one may take over the pack.
#[derive(Debug)]
pub(crate) struct Writer {
    folder: Arc<Folder>,
    pub(crate) pack: Arc<Pack>,
    files: Files,
    /// Process that created the writer. A forked child has a copy but does not own the pack.
    process: u32,
}

/// The files of a locked pack.
#[derive(Debug)]
pub(crate) struct Files {
    chunks: OwnedFd,
    index: OwnedFd,
    /// Length of the chunk file in bytes.
    end: u64,
    /// Number of records in the index.
    records: u64,
}

impl Files {
    /// Creates the files of a new pack. Returns `None` if another process removes the pack at once.
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

    /// Opens and locks the files of an existing pack. Returns `None` if another writer holds the
    /// pack or the pack has been removed.
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
        // An incomplete record at the end, left by a writer that was killed, is overwritten.
        let records = length_of(&rustix::fs::fstat(&index)?) / RECORD_BYTES as u64;
        Ok(Some(Self { chunks, index, end, records }))
    }
}

impl Writer {
    /// Creates a writer that appends at the end of the pack. The caller holds the lock of the pack.
    pub(crate) fn new(folder: &Arc<Folder>, pack: &Arc<Pack>, files: Files) -> Self {
        let (folder, pack) = (Arc::clone(folder), Arc::clone(pack));
        Self { folder, pack, files, process: std::process::id() }
    }

    /// Returns how many of these chunks, from the first one, still fit into the pack. An empty pack
    /// accepts at least one.
    pub(crate) fn fitting(&self, chunks: &[(ChunkId, &[u8])], limit: u64) -> usize {
        let used = self.files.end + self.files.records * RECORD_BYTES as u64;
        match fitting(chunks, limit.saturating_sub(used)) {
            0 if used == 0 => 1,
            count => count,
        }
    }

    /// Appends one or more chunks, and pushes their locations to `locations`.
    ///
    /// On an error, `locations` contains the chunks that were written completely.
    pub(crate) fn append(
        &mut self,
        chunks: &[(ChunkId, &[u8])],
        locations: &mut Vec<(ChunkId, Location)>,
    ) -> io::Result<()> {
        let mut found = Vec::with_capacity(chunks.len());
        let mut records = Vec::with_capacity(chunks.len() * RECORD_BYTES);
        let mut end = self.files.end;
        for ((id, bytes), record) in chunks.iter().zip(self.files.records..) {
            let (record, offset, length) = (narrow(record)?, narrow(end)?, narrow(bytes.len())?);
            found.push((*id, Location { pack: self.pack.number, record, offset, length }));
            records.extend(Record::Chunk { id: *id, offset, length }.encode());
            end += u64::from(length);
        }
        let pieces = chunks.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
        let (_, mut result) = write_fully(&self.files.chunks, pieces, self.files.end);
        if result.is_ok() {
            let (written, added) = self.add_records(&records);
            result = added;
            // Other processes may have read the complete records already.
            found.truncate(written / RECORD_BYTES);
            self.files.records += found.len() as u64;
            let last = found.last().map(|(_, location)| location);
            let new_end = last.map(|last| u64::from(last.offset) + u64::from(last.length));
            self.files.end = new_end.unwrap_or(self.files.end);
            locations.extend(found);
        }
        if result.is_err() {
            // No record refers to the bytes behind the end, and the disk may need their space.
            let _ = rustix::fs::ftruncate(&self.files.chunks, self.files.end);
            let index_end = self.files.records * RECORD_BYTES as u64;
            let _ = rustix::fs::ftruncate(&self.files.index, index_end);
        }
        result
    }

    fn add_records(&self, records: &[u8]) -> (usize, io::Result<()>) {
        let at = self.files.records * RECORD_BYTES as u64;
        write_fully(&self.files.index, vec![IoSlice::new(records)], at)
    }

    /// Marks the pack as full, so that no process scans it for more records.
    pub(crate) fn seal(self) {
        // If this fails, another process may take over the pack, and finds that it is full.
        if self.add_records(&Record::Sealed.encode()).1.is_ok() {
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

/// Returns how many of these chunks, with their records, fit into `capacity` bytes and into one
/// write.
pub(crate) fn fitting(chunks: &[(ChunkId, &[u8])], capacity: u64) -> usize {
    let mut used = 0;
    chunks
        .iter()
        .take(PIECES_MAX)
        .take_while(|(_, bytes)| {
            used += bytes.len() as u64 + RECORD_BYTES as u64;
            used <= capacity
        })
        .count()
}

/// Converts a number to the width that it has in a record.
fn narrow(number: impl TryInto<u32>) -> io::Result<u32> {
    number.try_into().map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Writes all pieces contiguously. Returns the number of bytes written, and an error if it is not
/// all.
fn write_fully(
    file: impl AsFd,
    mut pieces: Vec<IoSlice<'_>>,
    offset: u64,
) -> (usize, io::Result<()>) {
    let mut rest = &mut pieces[..];
    let mut done = 0;
    while !rest.is_empty() {
        match rustix::io::pwritev(&file, rest, offset + done as u64) {
            Ok(0) => return (done, Err(Errno::NOSPC.into())),
            Ok(length) => {
                done += length;
                IoSlice::advance_slices(&mut rest, length);
            }
            Err(Errno::INTR) => {}
            Err(other) => return (done, Err(other.into())),
        }
    }
    (done, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    /// A file on a disk that is always full.
    fn full() -> OwnedFd {
        let file = OpenOptions::new().read(true).write(true).open("/dev/full");
        file.expect("the system has it").into()
    }

    /// Appends while one of the files is on a full disk; returns the length of the other file.
    fn append(part: Part) -> u64 {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = Arc::new(Folder::open(folder.path()).expect("it is ours"));
        let name = PackName::random().expect("a name");
        let mut files = Files::create(&folder, name).expect("files").expect("they are ours");
        match part {
            Part::Chunks => files.chunks = full(),
            Part::Index => files.index = full(),
        }
        let pack = Arc::new(Pack::new(name, 0, Stage::Ours));
        let mut writer = Writer::new(&folder, &pack, files);
        let mut locations = Vec::new();
        let error = writer.append(&[(ChunkId::of(b"bytes"), b"bytes")], &mut locations);
        let error = error.expect_err("the disk is full");
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!((locations.len(), writer.files.end, writer.files.records), (0, 0, 0));
        let other = if part == Part::Chunks { &writer.files.index } else { &writer.files.chunks };
        length_of(&rustix::fs::fstat(other).expect("it is open"))
    }

    #[test]
    fn a_full_disk_for_chunks_leaves_no_index_records() {
        assert_eq!(append(Part::Chunks), 0);
    }

    #[test]
    fn a_full_disk_for_the_index_leaves_no_chunk_bytes() {
        assert_eq!(append(Part::Index), 0);
    }
}
