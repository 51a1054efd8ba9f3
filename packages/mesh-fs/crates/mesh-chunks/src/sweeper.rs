//! Has the system forget pages of chunks that were read: by a thread that nobody waits for.
//!
//! Who reads a chunk has its bytes elsewhere then, in the cache of a mount mostly. The advice not
//! to keep pages drops those that are on the disk, and has the others written, so that it is given
//! several times.

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

/// How long chunks that are read are collected, so that there are few and long pieces.
const TICK: Duration = Duration::from_millis(250);
/// After how many ticks the advice is given. What the disk has not taken by then stays until the
/// system needs its memory.
const TICKS: [u8; 5] = [0, 1, 3, 8, 20];
/// How many chunks are noted in a tick, and how many pieces are known; the system has the others.
const NOTED_MAX: usize = 1 << 16;
const PIECES_MAX: usize = 1 << 16;
/// How much is asked for at once.
const PIECE_BYTES: u64 = 4 << 20;
/// What the system caches is in pages, of this size or a larger one.
const PAGE_BYTES: u64 = 4096;

/// The place where chunks that were read are noted. The thread begins with the first one, and ends
/// when this is dropped.
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
    /// Whose the thread is: a copy of the process has none.
    process: u32,
    is_over: bool,
}

/// A pack, as far as it was read.
#[derive(Debug)]
struct Swept {
    pack: Weak<Pack>,
    /// Closed by the shelf, not by us.
    file: Weak<OwnedFd>,
    /// In order, without touching each other.
    pieces: Vec<Range<u64>>,
    /// Where something was read, and how many ticks ago.
    recent: Vec<(u64, u8)>,
}

impl Sweeper {
    /// Says that a chunk was read, and that its bytes are elsewhere now.
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
            // Without one the system drops pages when it needs their memory.
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
    /// Gives advice on what was read lately.
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
        // One of those that were read in the same tick, in the same piece, stands for all.
        let nth = |at: u64| self.pieces.partition_point(|piece| piece.end <= at);
        self.recent.sort_unstable_by_key(|(at, ticks)| (*ticks, *at));
        self.recent.dedup_by_key(|(at, ticks)| (*ticks, nth(*at)));
    }
}

/// Puts pieces in order, and joins those that touch each other.
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

/// Advises the system not to keep some bytes, but for those of a page at the end: who reads on
/// needs that.
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
