//! Scanning the folder for chunks that other processes have added or removed.

use crate::catalogue::Location;
use crate::folder::{PackName, Part, Purpose, length_of};
use crate::id::ChunkId;
use crate::locks::{lock, reading, writing};
use crate::pack::{Pack, Progress, Stage};
use crate::record::{RECORD_BYTES, Record};
use crate::store::Store;
use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of records that are read at a time.
const RECORDS_AT_ONCE: usize = 1024;
/// Two changes of a folder within this time may have the same modification time.
const DATE_STEP_NS: i128 = 100_000_000;

/// Result of the previous scan of the folder.
#[derive(Debug, Default)]
pub(crate) struct ScanState {
    /// Modification time of the folder when its files were listed.
    ///
    /// It is `None` if a later change may have the same modification time.
    listed: Option<(i64, i64)>,
    /// Packs to which other processes may append. They include the packs of this store.
    growing: Vec<Arc<Pack>>,
    /// Time of the last scan, in milliseconds since the store was opened.
    pub(crate) scanned_ms: u64,
}

impl Store {
    /// Scans the folder and ignores errors. If the scan fails, chunks that it would have found
    /// count as missing for now, which callers must handle in any case.
    pub(crate) fn rescan(&self) {
        let _ = self.scan();
    }

    /// Updates the catalogue from the folder. If several threads call this at once, one of them
    /// scans and the others wait for it.
    pub(crate) fn scan(&self) -> io::Result<()> {
        let scans_before = self.scans.load(Acquire);
        let mut scan_state = lock(&self.scan_state);
        if self.scans.load(Acquire) > scans_before {
            // Another thread started a scan after this call began, and has completed it.
            return Ok(());
        }
        self.scans.fetch_add(1, AcqRel);
        scan_state.scanned_ms = self.now_ms();
        let changed_at = self.folder.changed_at()?;
        if scan_state.listed != Some(changed_at) {
            self.list(&mut scan_state)?;
            scan_state.listed = is_settled(changed_at).then_some(changed_at);
        }
        for pack in &scan_state.growing {
            // If an index cannot be read, only the new chunks of its pack are missing.
            let _ = self.read_index(pack, &mut lock(&pack.progress));
        }
        self.retain_growing(&mut scan_state);
        Ok(())
    }

    fn retain_growing(&self, scan_state: &mut ScanState) {
        scan_state.growing.retain(|pack| {
            lock(&pack.progress).stage != Stage::Sealed && reading(&self.catalogue).is_listed(pack)
        });
    }

    /// Returns the packs to which other processes may append, or that their writers have left.
    pub(crate) fn growing(&self, scan_state: &ScanState) -> Vec<Arc<Pack>> {
        scan_state.growing.clone()
    }

    fn list(&self, scan_state: &mut ScanState) -> io::Result<()> {
        let listed: HashSet<PackName> = self
            .folder
            .list()?
            .into_iter()
            .filter_map(|(name, part)| (part == Part::Index).then_some(name))
            .collect();
        let known = reading(&self.catalogue).names();
        // A listing may omit a pack that was added while it ran, so check each missing one.
        let mut gone = HashSet::new();
        for name in known.difference(&listed) {
            if self.folder.stat(*name, Part::Index)?.is_none() {
                gone.insert(*name);
            }
        }
        let mut catalogue = writing(&self.catalogue);
        if !gone.is_empty() {
            catalogue.forget(|pack| gone.contains(&pack.name));
        }
        for name in listed.difference(&known) {
            catalogue.add_pack(*name, Stage::Growing);
        }
        let packs: Vec<_> = catalogue.packs().cloned().collect();
        drop(catalogue);
        scan_state.growing = packs;
        self.retain_growing(scan_state);
        Ok(())
    }

    /// Reads the records that were added since the last call, unless this store writes the pack.
    pub(crate) fn read_index(&self, pack: &Pack, progress: &mut Progress) -> io::Result<()> {
        if progress.stage != Stage::Growing {
            return Ok(());
        }
        let index = self.folder.stat(pack.name, Part::Index)?;
        let Some(index_bytes) = index.map(|stat| length_of(&stat)) else {
            self.forget(pack);
            return Ok(());
        };
        if index_bytes <= progress.index_bytes {
            return Ok(());
        }
        let chunks = self.folder.stat(pack.name, Part::Chunks)?;
        let file = self.folder.file(pack.name, Part::Index, Purpose::Read)?;
        let (Some(chunks), Some(file)) = (chunks, file) else {
            self.forget(pack);
            return Ok(());
        };
        self.read_records(pack, progress, &file, length_of(&chunks))?;
        progress.index_bytes = index_bytes;
        Ok(())
    }

    fn read_records(
        &self,
        pack: &Pack,
        progress: &mut Progress,
        file: &OwnedFd,
        pack_bytes: u64,
    ) -> io::Result<()> {
        let mut buffer = vec![0; RECORDS_AT_ONCE * RECORD_BYTES];
        let mut at = progress.records;
        loop {
            let length = read_fully(file, &mut buffer, at * RECORD_BYTES as u64)?;
            let (records, _) = buffer[..length].as_chunks();
            let mut found = Vec::new();
            for bytes in records {
                let record = Record::decode(bytes);
                if record == Some(Record::Sealed) {
                    progress.stage = Stage::Sealed;
                }
                found.extend(located(pack, record, at, pack_bytes));
                at += 1;
                if record.is_some() {
                    // Bytes that are not a valid record yet may be one at the next scan.
                    progress.records = at;
                }
            }
            writing(&self.catalogue).add_chunks(pack, found);
            if length < buffer.len() {
                return Ok(());
            }
        }
    }

    pub(crate) fn forget(&self, pack: &Pack) {
        writing(&self.catalogue).forget(|other| other.number == pack.number);
    }
}

/// Returns the chunk of a record, if it has one and the chunk is within the pack.
fn located(
    pack: &Pack,
    record: Option<Record>,
    at: u64,
    pack_bytes: u64,
) -> Option<(ChunkId, Location)> {
    let Record::Chunk { id, offset, length } = record? else { return None };
    let record = u32::try_from(at).ok()?;
    let is_within = u64::from(offset) + u64::from(length) <= pack_bytes;
    is_within.then_some((id, Location { pack: pack.number, record, offset, length }))
}

/// Returns whether this modification time is old enough that no further change can have it.
fn is_settled((seconds, nanoseconds): (i64, i64)) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    i128::try_from(now.as_nanos()).unwrap_or(0) > date + DATE_STEP_NS
}

/// Reads from a file until the buffer is full or the file ends. Returns the number of bytes read.
pub(crate) fn read_fully(file: &OwnedFd, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(rustix::io::Errno::INTR) => {}
            Err(other) => return Err(other.into()),
        }
    }
    Ok(done)
}
