//! The table of valid registrations, which the owner writes and all processes of its machine read.
//!
//! A registration is a slot and a key. A user checks before and after each use that the slot still
//! contains the key; a check is one load from memory. Revoking a registration is one store.

use crate::memory::shared_map::SharedMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// The maximum number of registrations of a process.
pub const SLOT_COUNT: usize = 1 << 16;
/// The number of words per slot that describe its memory; they follow the keys.
const LOCATION_LEN: usize = 3;
const LEN: usize = SLOT_COUNT * 8 * (1 + LOCATION_LEN);
const SEGMENT_SHIFT: u32 = 48;
/// The lowest bit of the word that contains the length.
const WRITABLE: u64 = 1;

/// The memory of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The address in its owner.
    pub address: u64,
    /// The size in bytes.
    pub len: u64,
    /// Whether other processes may write to it.
    pub is_writable: bool,
    /// The arena segment and the offset in it, if the memory is in the arena.
    pub arena: Option<(u32, u64)>,
}

/// The table, as seen by its owner or by a reader.
#[derive(Debug)]
pub struct Ledger(SharedMap);

impl Ledger {
    /// Creates the empty table of this process.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub fn create() -> io::Result<Self> {
        let map = SharedMap::create("mesh-rdma-ledger", LEN)?;
        map.keep_others_from_writing()?;
        Ok(Self(map))
    }

    /// Opens the table of another process.
    ///
    /// # Errors
    /// The table cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        SharedMap::open(fd, LEN, false).map(Self)
    }

    /// The memory file, for readers.
    pub fn map(&self) -> &SharedMap {
        &self.0
    }

    /// Whether the slot contains this key.
    pub fn is_valid(&self, slot: u32, key: u64) -> bool {
        (slot as usize) < SLOT_COUNT && self.0.word(slot as usize).load(SeqCst) == key
    }

    /// The memory of a registration as its owner describes it; `None` if it is not valid.
    pub fn location(&self, slot: u32, key: u64) -> Option<Location> {
        if !self.is_valid(slot, key) {
            return None;
        }
        let [address, len, arena] = self.location_words(slot).map(|word| word.load(SeqCst));
        let segment = u32::try_from(arena >> SEGMENT_SHIFT).ok()?.checked_sub(1);
        let arena = segment.map(|segment| (segment, arena & ((1 << SEGMENT_SHIFT) - 1)));
        let location = Location { address, len: len >> 1, is_writable: len & WRITABLE != 0, arena };
        // If the slot was reused during the reads, it has another key.
        self.is_valid(slot, key).then_some(location)
    }

    /// Makes a registration valid.
    pub(crate) fn publish(&self, slot: u32, key: u64, location: Location) {
        let arena = location
            .arena
            .map_or(0, |(segment, at)| u64::from(segment).saturating_add(1) << SEGMENT_SHIFT | at);
        let words = [location.address, location.len << 1 | u64::from(location.is_writable), arena];
        for (word, value) in self.location_words(slot).into_iter().zip(words) {
            word.store(value, SeqCst);
        }
        self.republish(slot, key);
    }

    /// Makes a registration valid again whose slot has not been reused.
    pub(crate) fn republish(&self, slot: u32, key: u64) {
        self.0.word(slot as usize).store(key, SeqCst);
    }

    fn location_words(&self, slot: u32) -> [&AtomicU64; LOCATION_LEN] {
        let first = SLOT_COUNT + slot as usize * LOCATION_LEN;
        std::array::from_fn(|index| self.0.word(first + index))
    }

    /// Revokes a registration; returns whether it was valid.
    pub(crate) fn revoke(&self, slot: u32, key: u64) -> bool {
        (slot as usize) < SLOT_COUNT
            && self.0.word(slot as usize).compare_exchange(key, 0, SeqCst, SeqCst).is_ok()
    }
}
