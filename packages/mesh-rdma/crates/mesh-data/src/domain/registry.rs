//! The registrations of this process and their holders.

use crate::error::DataError;
use crate::memory::ledger::SLOT_COUNT;
use crate::span::Span;
use std::any::Any;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// An object that keeps memory alive; it is dropped when the memory is no longer in use.
pub type MemoryOwner = Box<dyn Any + Send + Sync>;

/// A registered range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The address and the length.
    pub span: Span,
    /// Whether other processes may write to it.
    pub is_writable: bool,
    /// The number of the device that contains the memory. The processor must not access the
    /// address, and no built-in transport may use it.
    pub device: Option<u32>,
}

/// A holder of a buffer: this process, or a peer by its number.
pub(crate) type Holder = u64;
/// This process.
pub(crate) const THIS_PROCESS: Holder = 0;

/// The registrations by slot.
#[derive(Default)]
pub(crate) struct Registry {
    entries: HashMap<u32, Entry>,
    /// The keys of removed registrations that may still be in use, by slot.
    removed: HashMap<u32, u64>,
    /// Previously used slots, the last of which is reused first, and the first slot that was never
    /// used.
    free_slots: Vec<u32>,
    next_slot: u32,
}

/// The remaining potential users of a registration after a holder has released it.
pub(crate) enum RemainingUsers {
    /// Another holder.
    Holders,
    /// The receiver of a handle that may be in transit.
    InTransit,
    /// None.
    None,
}

/// One registration.
pub(crate) struct Entry {
    pub(crate) key: u64,
    pub(crate) memory: Memory,
    /// Objects attached by this process, which are dropped before the owner of the memory.
    attached: Vec<MemoryOwner>,
    pub(crate) memory_owner: MemoryOwner,
    /// The number of leases by holder.
    leases: HashMap<Holder, u32>,
    /// A handle may be in transit until this time.
    in_transit_until: Option<Instant>,
}

impl Registry {
    /// Restores a registration that was just removed.
    pub(crate) fn restore(&mut self, slot: u32, entry: Entry) {
        self.removed.remove(&slot);
        self.entries.insert(slot, entry);
    }

    /// Adds a registration with one lease of this process.
    pub(crate) fn add(
        &mut self,
        key: u64,
        memory: Memory,
        memory_owner: MemoryOwner,
    ) -> Result<u32, DataError> {
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None if (self.next_slot as usize) < SLOT_COUNT => {
                self.next_slot += 1;
                self.next_slot - 1
            }
            None => {
                let words = "this process has 65536 buffers registered: drop some of them";
                return Err(DataError::Full(words));
            }
        };
        let leases = HashMap::from([(THIS_PROCESS, 1)]);
        let (attached, in_transit_until) = Default::default();
        let entry = Entry { key, memory, attached, memory_owner, leases, in_transit_until };
        self.entries.insert(slot, entry);
        Ok(slot)
    }

    /// Returns the registration if it is valid.
    pub(crate) fn get(&self, slot: u32, key: u64) -> Option<&Entry> {
        self.entries.get(&slot).filter(|entry| entry.key == key)
    }

    /// Attaches an object that is dropped before the memory is released; returns the object if the
    /// registration is not valid.
    pub(crate) fn attach_object(
        &mut self,
        slot: u32,
        key: u64,
        object: MemoryOwner,
    ) -> Result<(), MemoryOwner> {
        match self.entries.get_mut(&slot).filter(|entry| entry.key == key) {
            Some(entry) => {
                entry.attached.push(object);
                Ok(())
            }
            None => Err(object),
        }
    }

    /// Removes a registration; its slot remains allocated until [`Registry::free`].
    pub(crate) fn remove(&mut self, slot: u32, key: u64) -> Option<Entry> {
        self.get(slot, key)?;
        self.removed.insert(slot, key);
        self.entries.remove(&slot)
    }

    /// Like [`Registry::remove`], unless it has more leases than one of this process.
    pub(crate) fn remove_unheld(&mut self, slot: u32, key: u64) -> Option<Entry> {
        let entry = self.get(slot, key)?;
        let is_ours = |(holder, count): (&Holder, &u32)| *holder == THIS_PROCESS && *count == 1;
        if entry.leases.iter().all(is_ours) { self.remove(slot, key) } else { None }
    }

    /// Whether the registration was removed and its slot is not free yet.
    pub(crate) fn is_removed(&self, slot: u32, key: u64) -> bool {
        self.removed.get(&slot) == Some(&key)
    }

    /// Frees the slot for reuse.
    pub(crate) fn free(&mut self, slot: u32) {
        self.removed.remove(&slot);
        self.free_slots.push(slot);
    }

    /// Adds a lease; returns whether the registration is valid.
    pub(crate) fn lease(&mut self, slot: u32, key: u64, holder: Holder) -> bool {
        let entry = self.entries.get_mut(&slot).filter(|entry| entry.key == key);
        entry.map(|entry| *entry.leases.entry(holder).or_default() += 1).is_some()
    }

    /// Removes a lease; returns the remaining potential users.
    pub(crate) fn end_lease(
        &mut self,
        slot: u32,
        key: u64,
        holder: Holder,
        now: Instant,
    ) -> RemainingUsers {
        let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.key == key) else {
            return RemainingUsers::Holders;
        };
        if let Some(count) = entry.leases.get_mut(&holder) {
            *count -= 1;
            if *count == 0 {
                entry.leases.remove(&holder);
            }
        }
        match (entry.leases.is_empty(), entry.is_unused(now)) {
            (false, _) => RemainingUsers::Holders,
            (true, false) => RemainingUsers::InTransit,
            (true, true) => RemainingUsers::None,
        }
    }

    /// Removes all leases of a holder; returns the registrations without remaining users.
    pub(crate) fn end_all_leases(&mut self, holder: Holder, now: Instant) -> Vec<(u32, u64)> {
        for entry in self.entries.values_mut() {
            entry.leases.remove(&holder);
        }
        self.unused(now)
    }

    /// Records that a handle is in transit; its receiver has `limit` to request a lease.
    pub(crate) fn mark_in_transit(&mut self, slot: u32, key: u64, limit: Duration, now: Instant) {
        if let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.key == key) {
            entry.in_transit_until = Some(now + limit);
        }
    }

    /// The registrations without holders and without handles in transit.
    pub(crate) fn unused(&self, now: Instant) -> Vec<(u32, u64)> {
        let unused = self.entries.iter().filter(|(_, entry)| entry.is_unused(now));
        unused.map(|(slot, entry)| (*slot, entry.key)).collect()
    }

    /// The time at which the next handle in transit of a registration without holders expires.
    pub(crate) fn next_expiration(&self) -> Option<Instant> {
        let waiting = self.entries.values().filter(|entry| entry.leases.is_empty());
        waiting.filter_map(|entry| entry.in_transit_until).min()
    }

    /// The number of registrations.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Entry {
    fn is_unused(&self, now: Instant) -> bool {
        self.leases.is_empty() && self.in_transit_until.is_none_or(|until| until <= now)
    }

    /// Releases the memory, after the attached objects.
    pub(crate) fn free(self) {
        drop(self.attached);
        drop(self.memory_owner);
    }
}
