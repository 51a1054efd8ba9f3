//! Which pages of a private mapping were written.
//!
//! The kernel says it page by page in `/proc/self/pagemap`: a page that was written is no page of
//! the file any more. So a view can be used again for the next message without unmapping it: only
//! what was written is discarded, and the rest, usually everything, stays in the page table.

use super::pages::{Pages, page_len, whole_pages};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The page is of a file, or of shared memory.
const OF_FILE: u64 = 1 << 61;
/// The page is swapped out, or on the move.
const SWAPPED: u64 = 1 << 62;
/// The page is in memory.
const PRESENT: u64 = 1 << 63;

/// Pages described by one read.
const BATCH: usize = 1024;
/// Clean pages between written ones that are discarded with them. The kernel maps this many
/// around a page that is touched, so they cost nothing more; and calls stay few.
const GAP: usize = 16;

/// The open page map of this process.
#[derive(Debug)]
pub(super) struct PageMap {
    /// None where `/proc` does not offer it.
    file: Option<File>,
}

impl PageMap {
    /// Opens the page map of this process; after a fork it still is that of the parent.
    pub(super) fn open() -> Self {
        Self { file: File::open("/proc/self/pagemap").ok() }
    }

    /// Discards what was written to `range` of a private mapping.
    pub(super) fn wipe(&self, pages: &Pages, range: &Range<usize>) -> io::Result<()> {
        let Some(file) = &self.file else { return pages.discard(range) };
        let page = page_len();
        let range = whole_pages(range);
        let mut run: Option<Range<usize>> = None;
        let mut entries = [0; BATCH * size_of::<u64>()];
        for batch in range.clone().step_by(BATCH * page) {
            let count = BATCH.min((range.end - batch) / page);
            let entries = &mut entries[..count * size_of::<u64>()];
            let number = (pages.at(batch).as_ptr() as usize / page) as u64;
            if file.read_exact_at(entries, number * size_of::<u64>() as u64).is_err() {
                return pages.discard(&range);
            }
            for at in written(entries).map(|index| batch + index * page) {
                match &mut run {
                    Some(run) if at <= run.end + GAP * page => run.end = at + page,
                    _ => {
                        if let Some(run) = run.replace(at..at + page) {
                            pages.discard(&run)?;
                        }
                    }
                }
            }
        }
        run.map_or(Ok(()), |run| pages.discard(&run))
    }
}

/// The positions of the entries of written pages.
fn written(entries: &[u8]) -> impl Iterator<Item = usize> {
    let entries = entries.as_chunks().0.iter().copied().map(u64::from_ne_bytes);
    entries
        .enumerate()
        .filter(|(_, entry)| entry & OF_FILE == 0 && entry & (PRESENT | SWAPPED) != 0)
        .map(|(index, _)| index)
}
