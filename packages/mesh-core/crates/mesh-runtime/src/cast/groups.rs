//! Descriptions of the ranks of a cast: boxes of hosts and slots with strides, never a list.
//!
//! A slice of a mesh with one regular pattern for its hosts and one for the slots on each host is
//! one box, whatever its size. An irregular selection takes as many boxes as it has exceptions.

use crate::node::Target;
use bytes::{Buf, BufMut};
use mesh_wire::id::{HostId, ProcId};

/// Bytes of a box on the wire.
pub(super) const GROUP_LEN: usize = 36;
/// Maximum number of slots of one host in a box.
const SLOTS_MAX: u32 = 1 << 16;

/// Ranks on hosts at a fixed stride, with the same slots on each host.
///
/// ```
/// use mesh_runtime::cast::Group;
/// use mesh_runtime::node::Target;
/// use mesh_wire::id::{HostId, ProcId};
/// let targets = (0..6).map(|rank| Target { proc: ProcId::new(rank / 2, 1 + rank % 2), rank });
/// let groups = Group::all(targets);
/// assert_eq!(groups.len(), 1);
/// let on_second: Vec<_> = groups[0].on(HostId(1)).collect();
/// assert_eq!(on_second, [(1, 2), (2, 3)]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    hosts: Stride,
    slots: Stride,
    first_rank: u32,
    /// The rank stride from host to host, and from slot to slot.
    rank_steps: (u32, u32),
}

/// `first`, `first + step`, and so on. Steps wrap around, so that they may be negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stride {
    first: u32,
    step: u32,
    count: u32,
}

impl Stride {
    fn at(&self, index: u32) -> u32 {
        self.first.wrapping_add(self.step.wrapping_mul(index))
    }

    fn index_of(&self, number: u32) -> Option<u32> {
        let distance = i64::from(number) - i64::from(self.first);
        let step = i64::from(self.step.cast_signed());
        if distance == 0 {
            return (self.count > 0).then_some(0);
        }
        if step == 0 || distance % step != 0 {
            return None;
        }
        u32::try_from(distance / step).ok().filter(|index| *index < self.count)
    }
}

impl Group {
    /// Returns the boxes that these targets form, in their order.
    pub fn all(targets: impl IntoIterator<Item = Target>) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        let mut targets = targets.into_iter().peekable();
        while let Some(first) = targets.next() {
            let mut row = Self::one(first);
            while targets.next_if(|target| row.takes(*target)).is_some() {}
            let is_taken = groups.last_mut().is_some_and(|last| last.takes_row(&row));
            if !is_taken {
                groups.push(row);
            }
        }
        groups
    }

    fn one(target: Target) -> Self {
        let ProcId { host, slot } = target.proc;
        Self {
            hosts: Stride { first: host.0, step: 0, count: 1 },
            slots: Stride { first: slot, step: 0, count: 1 },
            first_rank: target.rank,
            rank_steps: (0, 0),
        }
    }

    /// Adds another slot of the host if it continues the pattern.
    fn takes(&mut self, target: Target) -> bool {
        let count = self.slots.count;
        if target.proc.host.0 != self.hosts.first || count == SLOTS_MAX {
            return false;
        }
        if count == 1 {
            let step = target.proc.slot.wrapping_sub(self.slots.first);
            if step == 0 {
                return false;
            }
            self.slots.step = step;
            self.rank_steps.1 = target.rank.wrapping_sub(self.first_rank);
        }
        let is_next =
            self.slots.at(count) == target.proc.slot && self.rank_at(0, count) == target.rank;
        self.slots.count += u32::from(is_next);
        is_next
    }

    /// Adds the row of another host if it continues the pattern.
    fn takes_row(&mut self, row: &Self) -> bool {
        let count = self.hosts.count;
        let same_slots = self.slots == row.slots && self.rank_steps.1 == row.rank_steps.1;
        let step = row.hosts.first.wrapping_sub(self.hosts.first);
        if !same_slots || step == 0 {
            return false;
        }
        if count == 1 {
            self.hosts.step = step;
            self.rank_steps.0 = row.first_rank.wrapping_sub(self.first_rank);
        }
        let is_next =
            self.hosts.at(count) == row.hosts.first && self.rank_at(count, 0) == row.first_rank;
        self.hosts.count += u32::from(is_next);
        is_next
    }

    fn rank_at(&self, host: u32, slot: u32) -> u32 {
        let (by_host, by_slot) = self.rank_steps;
        let rank = self.first_rank.wrapping_add(by_host.wrapping_mul(host));
        rank.wrapping_add(by_slot.wrapping_mul(slot))
    }

    /// Returns the hosts, in order.
    pub fn hosts(&self) -> impl Iterator<Item = HostId> + use<> {
        let hosts = self.hosts;
        (0..hosts.count).map(move |index| HostId(hosts.at(index)))
    }

    /// Returns slot and rank of each target on one host.
    pub fn on(&self, host: HostId) -> impl Iterator<Item = (u32, u32)> + use<> {
        let group = *self;
        let place = group.hosts.index_of(host.0);
        place.into_iter().flat_map(move |place| {
            (0..group.slots.count).map(move |i| (group.slots.at(i), group.rank_at(place, i)))
        })
    }

    pub(super) fn encode(&self, out: &mut impl BufMut) {
        for stride in [self.hosts, self.slots] {
            out.put_u32_le(stride.first);
            out.put_u32_le(stride.step);
            out.put_u32_le(stride.count);
        }
        out.put_u32_le(self.first_rank);
        out.put_u32_le(self.rank_steps.0);
        out.put_u32_le(self.rank_steps.1);
    }

    /// Decodes the output of `encode`; `None` if the box is larger than any host.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut next = || bytes.try_get_u32_le().ok();
        let hosts = Stride { first: next()?, step: next()?, count: next()? };
        let slots = Stride { first: next()?, step: next()?, count: next()? };
        let first_rank = next()?;
        let rank_steps = (next()?, next()?);
        (slots.count <= SLOTS_MAX).then_some(Self { hosts, slots, first_rank, rank_steps })
    }
}
