//! Which registrations are good: a table that the owner writes, and all on its host read.
//!
//! A registration is a slot and a key. Whoever wants to use it looks before and after whether the
//! key is still in the slot; a look is one load from memory. To take a registration back is one
//! store.

use crate::memory::shared_map::SharedMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// How many registrations a process may have at a time.
pub const SLOT_COUNT: usize = 1 << 16;
/// Behind the keys: for each slot where its memory is, in words.
const PLACE_LEN: usize = 3;
const LEN: usize = SLOT_COUNT * 8 * (1 + PLACE_LEN);
const SEGMENT_SHIFT: u32 = 48;
/// The lowest bit of the word that has the length.
const WRITABLE: u64 = 1;

/// What a registration covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address in its owner.
    pub address: u64,
    /// How many bytes.
    pub len: u64,
    /// Whether others may write it.
    pub is_writable: bool,
    /// The arena segment and the place in it, where it lies in one.
    pub arena: Option<(u32, u64)>,
}

/// The table, as its owner or as a reader.
#[derive(Debug)]
pub struct Ledger(SharedMap);

impl Ledger {
    /// The table of this process, empty.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn create() -> io::Result<Self> {
        let map = SharedMap::create("mesh-rdma-ledger", LEN)?;
        map.keep_others_from_writing()?;
        Ok(Self(map))
    }

    /// The table of another process.
    ///
    /// # Errors
    /// It cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        SharedMap::open(fd, LEN, false).map(Self)
    }

    /// The memory file, for those who are to read it.
    pub fn map(&self) -> &SharedMap {
        &self.0
    }

    /// Whether the slot holds this key.
    pub fn is_good(&self, slot: u32, key: u64) -> bool {
        (slot as usize) < SLOT_COUNT && self.0.word(slot as usize).load(SeqCst) == key
    }

    /// What a registration covers, as its owner says; none when it is not good.
    pub fn place(&self, slot: u32, key: u64) -> Option<Place> {
        if !self.is_good(slot, key) {
            return None;
        }
        let [address, len, arena] = self.place_words(slot).map(|word| word.load(SeqCst));
        let segment = u32::try_from(arena >> SEGMENT_SHIFT).ok()?.checked_sub(1);
        let arena = segment.map(|segment| (segment, arena & ((1 << SEGMENT_SHIFT) - 1)));
        let place = Place { address, len: len >> 1, is_writable: len & WRITABLE != 0, arena };
        // A slot that was used again meanwhile has another key.
        self.is_good(slot, key).then_some(place)
    }

    /// Makes a registration good.
    pub(crate) fn publish(&self, slot: u32, key: u64, place: Place) {
        let arena = place
            .arena
            .map_or(0, |(segment, at)| u64::from(segment).saturating_add(1) << SEGMENT_SHIFT | at);
        let words = [place.address, place.len << 1 | u64::from(place.is_writable), arena];
        for (word, value) in self.place_words(slot).into_iter().zip(words) {
            word.store(value, SeqCst);
        }
        self.republish(slot, key);
    }

    /// Makes a registration good again whose slot has not been used for another one.
    pub(crate) fn republish(&self, slot: u32, key: u64) {
        self.0.word(slot as usize).store(key, SeqCst);
    }

    fn place_words(&self, slot: u32) -> [&AtomicU64; PLACE_LEN] {
        let first = SLOT_COUNT + slot as usize * PLACE_LEN;
        std::array::from_fn(|index| self.0.word(first + index))
    }

    /// Takes a registration back; tells whether it was good.
    pub(crate) fn revoke(&self, slot: u32, key: u64) -> bool {
        (slot as usize) < SLOT_COUNT
            && self.0.word(slot as usize).compare_exchange(key, 0, SeqCst, SeqCst).is_ok()
    }
}
