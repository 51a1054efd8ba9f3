//! Background thread that evicts chunks that were read from the system's page cache.
//!
//! The reader of a chunk keeps its bytes elsewhere, usually in the page cache of a mount.
//! `POSIX_FADV_DONTNEED` drops only clean pages and starts writeback of dirty ones, so the thread
//! repeats it several times.

use crate::catalogue::Place;
use crate::locks::lock;
use crate::pack::Pack;
use rustix::fs::Advice;
use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Interval over which chunks that were read are collected, so that adjacent ranges can be merged.
const TICK: Duration = Duration::from_millis(250);
/// Ticks after a read at which the advice is given. Pages that the disk has not taken by then stay
/// until the system needs their memory.
const TICKS: [u8; 5] = [0, 1, 3, 8, 20];
/// Limits on the chunks noted in one tick and on the known ranges. The system manages the pages
/// beyond them.
const NOTED_MAX: usize = 1 << 16;
const PIECES_MAX: usize = 1 << 16;
/// Maximum number of bytes for one advice.
const PIECE_BYTES: u64 = 4 << 20;
/// Smallest page size of the page cache.
const PAGE_BYTES: u64 = 4096;

/// Queue of chunks that were read. The thread starts with the first chunk, and exits when this is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct Sweeper(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    noted: Mutex<Noted>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Noted {
    chunks: Vec<(Weak<Pack>, Weak<OwnedFd>, Place)>,
    /// Process in which the thread runs: a forked child has no thread.
    process: u32,
    is_over: bool,
}

/// A pack, and the ranges of it that were read.
#[derive(Debug)]
struct Swept {
    pack: Weak<Pack>,
    /// Owned by `Shelf`, which closes it.
    file: Weak<OwnedFd>,
    /// Sorted, disjoint and not adjacent.
    pieces: Vec<Range<u64>>,
    /// Offsets of recent reads, with the number of ticks since.
    recent: Vec<(u64, u8)>,
}

impl Sweeper {
    /// Notes that a chunk was read and that its bytes are held elsewhere now.
    pub(crate) fn note(&self, pack: &Arc<Pack>, file: &Arc<OwnedFd>, place: Place) {
        let mut noted = lock(&self.0.noted);
        if noted.chunks.len() == NOTED_MAX {
            return;
        }
        noted.chunks.push((Arc::downgrade(pack), Arc::downgrade(file), place));
        let is_first = noted.chunks.len() == 1;
        if is_first && noted.process != std::process::id() {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("mesh-chunks-sweeper".to_owned());
            // Without the thread, the system drops pages when it needs their memory.
            if thread.spawn(move || sweep(&shared)).is_ok() {
                noted.process = std::process::id();
            }
        }
        drop(noted);
        if is_first {
            self.0.bell.notify_one();
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        lock(&self.0.noted).is_over = true;
        self.0.bell.notify_one();
    }
}

fn sweep(shared: &Shared) {
    let mut packs: HashMap<u32, Swept> = HashMap::new();
    loop {
        let is_idle = packs.values().all(|swept| swept.recent.is_empty());
        let mut noted = lock(&shared.noted);
        while is_idle && noted.chunks.is_empty() && !noted.is_over {
            noted = shared.bell.wait(noted).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = shared.bell.wait_timeout_while(noted, TICK, |noted| !noted.is_over);
        let (mut noted, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if noted.is_over {
            return;
        }
        let chunks = std::mem::take(&mut noted.chunks);
        drop(noted);
        add(&mut packs, chunks);
        packs.values_mut().for_each(Swept::tick);
        let pieces: usize = packs.values().map(|swept| swept.pieces.len()).sum();
        packs.retain(|_, swept| pieces <= PIECES_MAX && swept.pack.strong_count() > 0);
    }
}

fn add(packs: &mut HashMap<u32, Swept>, mut chunks: Vec<(Weak<Pack>, Weak<OwnedFd>, Place)>) {
    chunks.sort_unstable_by_key(|(_, _, place)| (place.pack, place.offset));
    for (pack, file, place) in chunks {
        let swept = packs.entry(place.pack).or_insert_with(|| Swept {
            pack,
            file: Weak::new(),
            pieces: Vec::new(),
            recent: Vec::new(),
        });
        swept.file = file;
        let start = u64::from(place.offset);
        swept.pieces.push(start..start + u64::from(place.length));
        swept.recent.push((start, 0));
    }
}

impl Swept {
    /// Gives the advice for the ranges that were read recently.
    fn tick(&mut self) {
        if self.recent.is_empty() {
            return;
        }
        self.pieces = joined(std::mem::take(&mut self.pieces));
        let due = self.recent.iter().filter(|(_, ticks)| TICKS.contains(ticks));
        let mut due: Vec<usize> =
            due.map(|(at, _)| self.pieces.partition_point(|piece| piece.end <= *at)).collect();
        due.sort_unstable();
        due.dedup();
        if let Some(file) = self.file.upgrade() {
            due.iter()
                .filter_map(|nth| self.pieces.get(*nth))
                .for_each(|piece| let_go(&file, piece));
        }
        let last = TICKS[TICKS.len() - 1];
        self.recent.retain_mut(|(_, ticks)| {
            *ticks += 1;
            *ticks <= last
        });
        // Keep one entry for all reads of the same tick and the same range.
        let nth = |at: u64| self.pieces.partition_point(|piece| piece.end <= at);
        self.recent.sort_unstable_by_key(|(at, ticks)| (*ticks, *at));
        self.recent.dedup_by_key(|(at, ticks)| (*ticks, nth(*at)));
    }
}

/// Sorts ranges, and merges those that overlap or are adjacent.
fn joined(mut pieces: Vec<Range<u64>>) -> Vec<Range<u64>> {
    pieces.sort_unstable_by_key(|piece| piece.start);
    pieces.dedup_by(|next, piece| {
        let is_touching = next.start <= piece.end;
        if is_touching {
            piece.end = piece.end.max(next.end);
        }
        is_touching
    });
    pieces
}

/// Advises the system to drop a range.
///
/// The partial page at the end is kept because a sequential reader needs it next.
fn let_go(file: &OwnedFd, bytes: &Range<u64>) {
    let mut start = bytes.start / PAGE_BYTES * PAGE_BYTES;
    let end = bytes.end / PAGE_BYTES * PAGE_BYTES;
    while let Some(length) = NonZeroU64::new((end.saturating_sub(start)).min(PIECE_BYTES)) {
        if rustix::fs::fadvise(file, start, Some(length), Advice::DontNeed).is_err() {
            return;
        }
        start += length.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_touch_are_one() {
        let pieces = vec![30..40, 0..10, 10..20, 15..18, 25..30, 50..60];
        assert_eq!(joined(pieces), [0..20, 25..40, 50..60]);
    }
}
