//! What of this process's memory others may use, and who counts on it.

use crate::error::DataError;
use crate::memory::ledger::SLOT_COUNT;
use crate::span::Span;
use std::any::Any;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What keeps memory alive; it is dropped when nobody uses the memory any more.
pub type Keeper = Box<dyn Any + Send + Sync>;

/// A range of memory that is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Where it is, and how long.
    pub span: Span,
    /// Whether others may write it.
    pub is_writable: bool,
    /// The number of the device whose memory it is; then no instruction of the processor reaches
    /// the address, and none of the built-in ways may use it.
    pub device: Option<u32>,
}

/// Who holds a buffer: this process, or a peer by its number.
pub(crate) type Holder = u64;
/// This process itself.
pub(crate) const OURSELVES: Holder = 0;

/// Registrations by slot.
#[derive(Default)]
pub(crate) struct Registry {
    entries: HashMap<u32, Entry>,
    /// What was taken out and may still be in use: the keys, by slot.
    leaving: HashMap<u32, u64>,
    /// Slots that were used before, oldest first, and the first that never was.
    free: Vec<u32>,
    fresh: u32,
}

/// Who can use a registration after a holder has let go; nobody knows better of what is gone.
pub(crate) enum Left {
    /// Another holder.
    Somebody,
    /// Whoever gets a handle that may be on its way.
    OnTheWay,
    /// Nobody.
    Nobody,
}

/// One registration.
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) memory: Memory,
    /// What others of this process hang on it goes first.
    extras: Vec<Keeper>,
    pub(crate) keeper: Keeper,
    /// How often each holder holds it.
    leases: HashMap<Holder, u32>,
    /// A handle may be on its way to somebody until then.
    travels_until: Option<Instant>,
}

impl Registry {
    /// Puts back what was taken out a moment ago.
    pub(crate) fn put_back(&mut self, slot: u32, entry: Entry) {
        self.leaving.remove(&slot);
        self.entries.insert(slot, entry);
    }

    /// Takes memory in, held by this process once.
    pub(crate) fn add(
        &mut self,
        key: u64,
        memory: Memory,
        keeper: Keeper,
    ) -> Result<u32, DataError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if (self.fresh as usize) < SLOT_COUNT => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => {
                let words = "this process has 65536 buffers registered: drop some of them";
                return Err(DataError::Full(words));
            }
        };
        let leases = HashMap::from([(OURSELVES, 1)]);
        let (extras, travels_until) = Default::default();
        let entry = Entry { key, memory, extras, keeper, leases, travels_until };
        self.entries.insert(slot, entry);
        Ok(slot)
    }

    /// The registration, if it is good.
    pub(crate) fn get(&self, slot: u32, key: u64) -> Option<&Entry> {
        self.entries.get(&slot).filter(|entry| entry.key == key)
    }

    /// Has something dropped before the memory is let go; gives it back where the registration is
    /// not good.
    pub(crate) fn keep(&mut self, slot: u32, key: u64, kept: Keeper) -> Result<(), Keeper> {
        match self.entries.get_mut(&slot).filter(|entry| entry.key == key) {
            Some(entry) => {
                entry.extras.push(kept);
                Ok(())
            }
            None => Err(kept),
        }
    }

    /// Takes a registration out; its slot stays taken until [`Registry::free`].
    pub(crate) fn remove(&mut self, slot: u32, key: u64) -> Option<Entry> {
        self.get(slot, key)?;
        self.leaving.insert(slot, key);
        self.entries.remove(&slot)
    }

    /// As [`Registry::remove`], unless it is held more often than once by ourselves.
    pub(crate) fn remove_unheld(&mut self, slot: u32, key: u64) -> Option<Entry> {
        let entry = self.get(slot, key)?;
        let is_ours = |(holder, count): (&Holder, &u32)| *holder == OURSELVES && *count == 1;
        if entry.leases.iter().all(is_ours) { self.remove(slot, key) } else { None }
    }

    /// Whether it was taken out, and its slot is not free yet.
    pub(crate) fn is_leaving(&self, slot: u32, key: u64) -> bool {
        self.leaving.get(&slot) == Some(&key)
    }

    /// The slot may be used again.
    pub(crate) fn free(&mut self, slot: u32) {
        self.leaving.remove(&slot);
        self.free.push(slot);
    }

    /// Counts a holder once more; tells whether the registration is good.
    pub(crate) fn lease(&mut self, slot: u32, key: u64, holder: Holder) -> bool {
        let entry = self.entries.get_mut(&slot).filter(|entry| entry.key == key);
        entry.map(|entry| *entry.leases.entry(holder).or_default() += 1).is_some()
    }

    /// Counts a holder once less; tells who is left.
    pub(crate) fn end_lease(&mut self, slot: u32, key: u64, holder: Holder, now: Instant) -> Left {
        let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.key == key) else {
            return Left::Somebody;
        };
        if let Some(count) = entry.leases.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                entry.leases.remove(&holder);
            }
        }
        match (entry.leases.is_empty(), entry.is_forgotten(now)) {
            (false, _) => Left::Somebody,
            (true, false) => Left::OnTheWay,
            (true, true) => Left::Nobody,
        }
    }

    /// A holder is gone; gives what nobody is left for.
    pub(crate) fn end_all_leases(&mut self, holder: Holder, now: Instant) -> Vec<(u32, u64)> {
        for entry in self.entries.values_mut() {
            entry.leases.remove(&holder);
        }
        self.forgotten(now)
    }

    /// A handle leaves this process: whoever gets it has `limit` to ask for a lease.
    pub(crate) fn travels(&mut self, slot: u32, key: u64, limit: Duration, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.key == key) {
            entry.travels_until = Some(now + limit);
        }
    }

    /// What nobody holds and no handle is on its way to.
    pub(crate) fn forgotten(&self, now: Instant) -> Vec<(u32, u64)> {
        let forgotten = self.entries.iter().filter(|(_, entry)| entry.is_forgotten(now));
        forgotten.map(|(slot, entry)| (*slot, entry.key)).collect()
    }

    /// When to look again for what nobody holds, if handles are on their way.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let waiting = self.entries.values().filter(|entry| entry.leases.is_empty());
        waiting.filter_map(|entry| entry.travels_until).min()
    }

    /// How many registrations there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    fn is_forgotten(&self, now: Instant) -> bool {
        self.leases.is_empty() && self.travels_until.is_none_or(|until| until <= now)
    }

    /// Lets go of the memory, after what was hung on it.
    pub(crate) fn let_go(self) {
        drop(self.extras);
        drop(self.keeper);
    }
}
