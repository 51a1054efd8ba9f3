//! Background thread that evicts chunks that were read from the system's page cache.
//!
//! The reader of a chunk keeps its bytes elsewhere, usually in the page cache of a mount.
//! `POSIX_FADV_DONTNEED` drops only clean pages and starts writeback of dirty ones, so the thread
//! repeats it several times.

use crate::catalogue::Location;
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
/// Limits on the chunks queued in one tick and on the known ranges. The system manages the pages
/// beyond them.
const QUEUE_LEN_MAX: usize = 1 << 16;
const RANGES_MAX: usize = 1 << 16;
/// Maximum number of bytes for one advice.
const ADVICE_BYTES_MAX: u64 = 4 << 20;
/// Smallest page size of the page cache.
const PAGE_BYTES: u64 = 4096;

/// Queue of chunks that were read. The thread starts with the first chunk, and exits when this is
/// dropped.
#[derive(Debug, Default)]
pub(crate) struct PageCacheEvictor(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    wakeup: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    chunks: Vec<(Weak<Pack>, Weak<OwnedFd>, Location)>,
    /// Process in which the thread runs: a forked child has no thread.
    process: u32,
    is_closed: bool,
}

/// A pack, and the ranges of it that were read.
#[derive(Debug)]
struct PackRanges {
    pack: Weak<Pack>,
    /// Owned by `OpenPacks`, which closes it.
    file: Weak<OwnedFd>,
    /// Sorted, disjoint and not adjacent.
    ranges: Vec<Range<u64>>,
    /// Offsets of recent reads, with the number of ticks since.
    recent: Vec<(u64, u8)>,
}

impl PageCacheEvictor {
    /// Records that a chunk was read and that its bytes are cached elsewhere now.
    pub(crate) fn add(&self, pack: &Arc<Pack>, file: &Arc<OwnedFd>, location: Location) {
        let mut queue = lock(&self.0.queue);
        if queue.chunks.len() == QUEUE_LEN_MAX {
            return;
        }
        queue.chunks.push((Arc::downgrade(pack), Arc::downgrade(file), location));
        let is_first = queue.chunks.len() == 1;
        if is_first && queue.process != std::process::id() {
            let shared = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("mesh-chunks-evictor".to_owned());
            // Without the thread, the system drops pages when it needs their memory.
            if thread.spawn(move || run(&shared)).is_ok() {
                queue.process = std::process::id();
            }
        }
        drop(queue);
        if is_first {
            self.0.wakeup.notify_one();
        }
    }
}

impl Drop for PageCacheEvictor {
    fn drop(&mut self) {
        lock(&self.0.queue).is_closed = true;
        self.0.wakeup.notify_one();
    }
}

fn run(shared: &Shared) {
    let mut packs: HashMap<u32, PackRanges> = HashMap::new();
    loop {
        let is_idle = packs.values().all(|pack| pack.recent.is_empty());
        let mut queue = lock(&shared.queue);
        while is_idle && queue.chunks.is_empty() && !queue.is_closed {
            queue = shared.wakeup.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let waited = shared.wakeup.wait_timeout_while(queue, TICK, |queue| !queue.is_closed);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if queue.is_closed {
            return;
        }
        let chunks = std::mem::take(&mut queue.chunks);
        drop(queue);
        add_chunks(&mut packs, chunks);
        packs.values_mut().for_each(PackRanges::tick);
        let ranges: usize = packs.values().map(|pack| pack.ranges.len()).sum();
        packs.retain(|_, pack| ranges <= RANGES_MAX && pack.pack.strong_count() > 0);
    }
}

fn add_chunks(
    packs: &mut HashMap<u32, PackRanges>,
    mut chunks: Vec<(Weak<Pack>, Weak<OwnedFd>, Location)>,
) {
    chunks.sort_unstable_by_key(|(_, _, location)| (location.pack, location.offset));
    for (pack, file, location) in chunks {
        let entry = packs.entry(location.pack).or_insert_with(|| PackRanges {
            pack,
            file: Weak::new(),
            ranges: Vec::new(),
            recent: Vec::new(),
        });
        entry.file = file;
        let start = u64::from(location.offset);
        entry.ranges.push(start..start + u64::from(location.length));
        entry.recent.push((start, 0));
    }
}

impl PackRanges {
    /// Gives the advice for the ranges that were read recently.
    fn tick(&mut self) {
        if self.recent.is_empty() {
            return;
        }
        self.ranges = merged(std::mem::take(&mut self.ranges));
        let due = self.recent.iter().filter(|(_, ticks)| TICKS.contains(ticks));
        let mut due: Vec<usize> =
            due.map(|(at, _)| self.ranges.partition_point(|range| range.end <= *at)).collect();
        due.sort_unstable();
        due.dedup();
        if let Some(file) = self.file.upgrade() {
            due.iter()
                .filter_map(|nth| self.ranges.get(*nth))
                .for_each(|range| drop_pages(&file, range));
        }
        let last = TICKS[TICKS.len() - 1];
        self.recent.retain_mut(|(_, ticks)| {
            *ticks += 1;
            *ticks <= last
        });
        // Keep one entry for all reads of the same tick and the same range.
        let nth = |at: u64| self.ranges.partition_point(|range| range.end <= at);
        self.recent.sort_unstable_by_key(|(at, ticks)| (*ticks, *at));
        self.recent.dedup_by_key(|(at, ticks)| (*ticks, nth(*at)));
    }
}

/// Sorts ranges, and merges overlapping or adjacent ones.
fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let is_touching = next.start <= range.end;
        if is_touching {
            range.end = range.end.max(next.end);
        }
        is_touching
    });
    ranges
}

/// Advises the system to drop a range.
///
/// The partial page at the end is kept because a sequential reader needs it next.
fn drop_pages(file: &OwnedFd, bytes: &Range<u64>) {
    let mut start = bytes.start / PAGE_BYTES * PAGE_BYTES;
    let end = bytes.end / PAGE_BYTES * PAGE_BYTES;
    while let Some(length) = NonZeroU64::new((end.saturating_sub(start)).min(ADVICE_BYTES_MAX)) {
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
    fn adjacent_ranges_are_merged() {
        let ranges = vec![30..40, 0..10, 10..20, 15..18, 25..30, 50..60];
        assert_eq!(merged(ranges), [0..20, 25..40, 50..60]);
    }
}
