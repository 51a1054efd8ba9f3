//! The choice of a segment for the next message: the bookkeeping of the pool, without system calls.

use super::memory::Memory;
use super::pages::page_len;
use super::pool::{SegmentLimits, SegmentStats};
use mesh_wire::id::ProcId;

/// Maximum ratio of the size of a warm segment to the length of a message in it.
///
/// A shorter message gets another segment, so that small messages do not occupy the memory that
/// large ones have warmed.
const FIT_MAX: usize = 4;
/// Segments up to this size in bytes accept every message that fits.
const SMALL_LEN: usize = 64 << 10;

/// The state of a segment.
enum Use {
    /// Unused since the given tick.
    Idle(u64),
    /// One thread fills or empties it without holding the lock.
    Busy,
    /// These processes may still read it; a process that holds it several times is listed as often.
    Read(Vec<ProcId>),
}

/// One segment; its number is its index in the pool.
struct Slot {
    usage: Use,
    /// Absent while busy, or if the kernel refused to create it.
    memory: Option<Memory>,
    generation: u32,
    /// Bytes counted against the limit: the memory that it has or is about to get.
    bytes: usize,
}

impl Slot {
    /// Returns the tick since which the segment is unused.
    fn idle_since(&self) -> Option<u64> {
        if let Use::Idle(since) = self.usage { Some(since) } else { None }
    }
}

/// A segment that was taken to be filled.
pub(super) struct ReservedSegment {
    pub(super) index: usize,
    /// `None` for a segment that is not created yet.
    pub(super) memory: Option<Memory>,
    /// Segments to empty first, so that the limit holds.
    pub(super) victims: Vec<(usize, Memory)>,
}

/// The reason why no segment can be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    Full,
    TooLarge,
}

/// All segments of a pool.
#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// Sum of the bytes of all slots.
    bytes: usize,
    /// Number of releases; orders idle segments by age without a clock.
    tick: u64,
    /// The tick at the last sweep; 0 before the first one, when no segment is that old.
    swept: u64,
    fills: u64,
    fills_warm: u64,
    fills_refused: u64,
}

impl Slots {
    /// Takes a segment for a message of `len` bytes.
    pub(super) fn take(
        &mut self,
        len: usize,
        limits: &SegmentLimits,
    ) -> Result<ReservedSegment, Refusal> {
        let taken = self.try_take(len, limits);
        if taken.is_err() {
            self.fills_refused += 1;
        }
        taken
    }

    fn try_take(&mut self, len: usize, limits: &SegmentLimits) -> Result<ReservedSegment, Refusal> {
        let bytes_max = limits.bytes_max;
        if len.next_multiple_of(page_len()) > bytes_max {
            return Err(Refusal::TooLarge);
        }
        let index = self.choose(len, limits).ok_or(Refusal::Full)?;
        let has = self.slots.get(index).map_or(0, |slot| slot.bytes);
        let bytes = has.max(len.next_multiple_of(page_len()));
        let excess = (self.bytes - has + bytes).saturating_sub(bytes_max);
        let others = |slots: &Self| slots.idle().filter(|other| *other != index).collect();
        let victims = self.oldest(others(self), excess).ok_or(Refusal::Full)?;
        if index == self.slots.len() {
            self.slots.push(Slot { usage: Use::Busy, memory: None, generation: 0, bytes: 0 });
        }
        self.fills += 1;
        self.fills_warm += u64::from(bytes == has);
        let slot = &mut self.slots[index];
        slot.usage = Use::Busy;
        slot.bytes = bytes;
        let memory = slot.memory.take();
        self.bytes = self.bytes - has + bytes;
        let victims = self.take_all(victims);
        assert!(self.bytes <= bytes_max, "the victims make up for the excess");
        Ok(ReservedSegment { index, memory, victims })
    }

    /// Hands a filled segment to its readers and returns its new generation.
    pub(super) fn publish(&mut self, index: usize, memory: Memory, readers: &[ProcId]) -> u32 {
        let slot = &mut self.slots[index];
        assert!(matches!(slot.usage, Use::Busy), "a segment is taken before it is published");
        slot.usage = Use::Read(readers.to_vec());
        slot.memory = Some(memory);
        slot.generation = slot.generation.wrapping_add(1);
        slot.generation
    }

    /// Returns a segment that was taken and has no readers.
    pub(super) fn put_back(&mut self, index: usize, memory: Option<Memory>) {
        let slot = &mut self.slots[index];
        assert!(matches!(slot.usage, Use::Busy), "a segment is taken before it is put back");
        let bytes = memory.as_ref().map_or(0, Memory::resident);
        self.bytes = self.bytes - slot.bytes + bytes;
        slot.bytes = bytes;
        slot.memory = memory;
        slot.usage = Use::Idle(self.tick);
    }

    /// Adds readers to a generation of a segment; returns `false` if that generation has ended.
    pub(super) fn acquire(&mut self, index: usize, generation: u32, more: &[ProcId]) -> bool {
        match self.slots.get_mut(index) {
            Some(Slot { usage: Use::Read(readers), generation: current, .. })
                if *current == generation =>
            {
                readers.extend_from_slice(more);
                true
            }
            _ => false,
        }
    }

    /// Whether a process may still read this generation of a segment.
    pub(super) fn is_read(&self, index: usize, generation: u32) -> bool {
        let slot = self.slots.get(index).filter(|slot| slot.generation == generation);
        slot.is_some_and(|slot| matches!(slot.usage, Use::Read(_)))
    }

    /// Ends one reference of `reader`, if the segment still has this generation.
    pub(super) fn release(&mut self, index: usize, generation: u32, reader: ProcId) {
        if self.is_read(index, generation) {
            self.remove_readers(index, |readers| {
                if let Some(at) = readers.iter().position(|other| *other == reader) {
                    readers.swap_remove(at);
                }
            });
        }
    }

    /// Ends all references of `reader`.
    pub(super) fn release_all(&mut self, reader: ProcId) {
        for index in 0..self.slots.len() {
            self.remove_readers(index, |readers| readers.retain(|other| *other != reader));
        }
    }

    /// Takes the oldest idle segments until idle ones have at most `bytes_max` bytes.
    ///
    /// The youngest segment is never taken.
    pub(super) fn take_excess(&mut self, bytes_max: usize) -> Vec<(usize, Memory)> {
        let bytes: usize = self.idle().map(|index| self.slots[index].bytes).sum();
        let mut warm: Vec<_> = self.idle().filter(|index| self.slots[*index].bytes > 0).collect();
        let youngest = warm.iter().copied().max_by_key(|index| self.slots[*index].idle_since());
        warm.retain(|index| Some(*index) != youngest);
        let excess = bytes.saturating_sub(bytes_max);
        let victims = self.oldest(warm.clone(), excess).unwrap_or(warm);
        self.take_all(victims)
    }

    /// Takes the segments that were idle at the last call and still are.
    pub(super) fn take_stale(&mut self) -> Vec<(usize, Memory)> {
        let is_stale = |index: &usize| {
            let slot = &self.slots[*index];
            slot.bytes > 0 && slot.idle_since().is_some_and(|since| since <= self.swept)
        };
        let victims = self.idle().filter(is_stale).collect();
        self.swept = self.tick;
        self.take_all(victims)
    }

    /// Returns the statistics of the pool.
    pub(super) fn stats(&self) -> SegmentStats {
        let in_use = self.slots.iter().filter(|slot| slot.idle_since().is_none());
        SegmentStats {
            segments: self.slots.len(),
            bytes: self.bytes,
            bytes_in_use: in_use.map(|slot| slot.bytes).sum(),
            fills: self.fills,
            fills_warm: self.fills_warm,
            fills_refused: self.fills_refused,
        }
    }

    /// Returns the best segment for `len` bytes; the index after the last one means a new segment.
    fn choose(&self, len: usize, limits: &SegmentLimits) -> Option<usize> {
        let bytes = |index: &usize| self.slots[*index].bytes;
        let age = |index: &usize| self.slots[*index].idle_since();
        let fits = |index: &usize| bytes(index) >= len;
        let close_max = len.saturating_mul(FIT_MAX).max(SMALL_LEN);
        let close = |index: &usize| fits(index) && bytes(index) <= close_max;
        let half = |index: &usize| bytes(index) >= len / 2 && !fits(index);
        // The most recently used one is the most likely to be in the caches of the processor.
        let warm = self.idle().filter(close).max_by_key(age);
        // Half of its pages exist already.
        let grown = || self.idle().filter(half).max_by_key(bytes);
        let cold = || self.idle().find(|index| bytes(index) == 0);
        let new = || (self.slots.len() < limits.segments_max).then_some(self.slots.len());
        let any_warm = || self.idle().filter(fits).min_by_key(bytes);
        let any = || self.idle().max_by_key(bytes);
        warm.or_else(grown).or_else(cold).or_else(new).or_else(any_warm).or_else(any)
    }

    fn idle(&self) -> impl Iterator<Item = usize> {
        (0..self.slots.len()).filter(|index| self.slots[*index].idle_since().is_some())
    }

    /// Returns the oldest of the `candidates` that together have `excess` bytes.
    ///
    /// Returns `None` if all of them have less.
    fn oldest(&self, mut candidates: Vec<usize>, excess: usize) -> Option<Vec<usize>> {
        candidates.retain(|index| self.slots[*index].bytes > 0);
        candidates.sort_unstable_by_key(|index| self.slots[*index].idle_since());
        let mut bytes = 0;
        let mut victims = Vec::new();
        for index in candidates {
            if bytes >= excess {
                break;
            }
            bytes += self.slots[index].bytes;
            victims.push(index);
        }
        (bytes >= excess).then_some(victims)
    }

    /// Takes idle segments to empty them; their bytes no longer count.
    fn take_all(&mut self, indices: Vec<usize>) -> Vec<(usize, Memory)> {
        let mut taken = Vec::with_capacity(indices.len());
        for index in indices {
            let slot = &mut self.slots[index];
            if let Some(memory) = slot.memory.take() {
                slot.usage = Use::Busy;
                self.bytes -= slot.bytes;
                slot.bytes = 0;
                taken.push((index, memory));
            }
        }
        taken
    }

    /// Removes readers from a segment; without any reader it is idle.
    fn remove_readers(&mut self, index: usize, remove: impl FnOnce(&mut Vec<ProcId>)) {
        let slot = &mut self.slots[index];
        let Use::Read(readers) = &mut slot.usage else { return };
        remove(readers);
        if readers.is_empty() {
            self.tick += 1;
            slot.usage = Use::Idle(self.tick);
        }
    }
}
