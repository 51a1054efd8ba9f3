//! Looking at the folder for what other processes have put there, or have taken away.

use crate::catalogue::Place;
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

/// How many records are read at a time.
const RECORDS_AT_ONCE: usize = 1024;
/// Two changes of a folder within this time may have the same date.
const DATE_STEP_NS: i128 = 100_000_000;

/// What was seen of the folder.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// The folder's date when its files were listed; none if more may have come at the same date.
    listed: Option<(i64, i64)>,
    /// The packs that other processes may add to. Those of this store are among them.
    growing: Vec<Arc<Pack>>,
    /// When the folder was last looked at, in milliseconds since the store was opened.
    pub(crate) looked_ms: u64,
}

impl Store {
    /// Looks at the folder if that can be. If not, what is there is missing for now, which is no
    /// worse than if it were not there.
    pub(crate) fn look_again(&self) {
        let _ = self.look();
    }

    /// Brings the catalogue up to date. Of the threads that want it at once, one does it.
    pub(crate) fn look(&self) -> io::Result<()> {
        let looks_before = self.looks.load(Acquire);
        let mut lookout = lock(&self.lookout);
        if self.looks.load(Acquire) > looks_before {
            // Somebody has begun after we wanted it, and is done.
            return Ok(());
        }
        self.looks.fetch_add(1, AcqRel);
        lookout.looked_ms = self.now_ms();
        let changed_at = self.folder.changed_at()?;
        if lookout.listed != Some(changed_at) {
            self.list(&mut lookout)?;
            lookout.listed = is_over(changed_at).then_some(changed_at);
        }
        for pack in &lookout.growing {
            // An index that cannot be read makes its pack's new chunks missing, no others.
            let _ = self.read_index(pack, &mut lock(&pack.progress));
        }
        self.retain_growing(&mut lookout);
        Ok(())
    }

    fn retain_growing(&self, lookout: &mut Lookout) {
        lookout.growing.retain(|pack| {
            lock(&pack.progress).stage != Stage::Sealed && reading(&self.catalogue).is_listed(pack)
        });
    }

    /// Those that other processes may add to, or have left.
    pub(crate) fn growing(&self, lookout: &Lookout) -> Vec<Arc<Pack>> {
        lookout.growing.clone()
    }

    fn list(&self, lookout: &mut Lookout) -> io::Result<()> {
        let listed: HashSet<PackName> = self
            .folder
            .list()?
            .into_iter()
            .filter_map(|(name, part)| (part == Part::Index).then_some(name))
            .collect();
        let known = reading(&self.catalogue).names();
        // One that has come meanwhile may not be listed, so that each is asked for.
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
        lookout.growing = packs;
        self.retain_growing(lookout);
        Ok(())
    }

    /// Reads the records that have come since the last time, unless we have written them.
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
                    // What is no record yet may be one the next time.
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

/// The chunk of a record, if it has one that is within the pack.
fn located(
    pack: &Pack,
    record: Option<Record>,
    at: u64,
    pack_bytes: u64,
) -> Option<(ChunkId, Place)> {
    let Record::Chunk { id, offset, length } = record? else { return None };
    let record = u32::try_from(at).ok()?;
    let is_within = u64::from(offset) + u64::from(length) <= pack_bytes;
    is_within.then_some((id, Place { pack: pack.number, record, offset, length }))
}

/// Whether no further change will have this date.
fn is_over((seconds, nanoseconds): (i64, i64)) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    i128::try_from(now.as_nanos()).unwrap_or(0) > date + DATE_STEP_NS
}

/// Fills a buffer from a file as far as that goes; gives how far.
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
