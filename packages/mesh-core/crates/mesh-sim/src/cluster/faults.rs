//! Stopped processes, slow hosts, partitions, and connections that break.

use super::{Cluster, Event};
use crate::message::Life;
use mesh_wire::id::HostId;
use std::collections::BTreeSet;
use std::time::Duration;

/// The interval at which events of a stopped process are tried again.
const STALL_CHECK: Duration = Duration::from_millis(10);

impl Cluster {
    /// Stops a process for a while.
    pub fn stall(&mut self, life: Life, length: Duration) {
        let until = self.stalled.entry(life).or_default();
        *until = (self.now + length).max(*until);
    }

    /// Lets a stopped process continue.
    pub fn end_stall(&mut self, life: Life) {
        self.stalled.remove(&life);
    }

    /// Makes a host slower than others by a factor.
    pub fn slow_down(&mut self, host: HostId, factor: u32) {
        self.slowness.insert(host, factor.max(1));
    }

    /// Separates some hosts from all others for a while. Frames between them arrive afterwards.
    pub fn separate(&mut self, hosts: BTreeSet<HostId>, length: Duration) {
        self.partition = (hosts, self.now + length);
    }

    /// Breaks a random connection of a process. Frames in transit may be lost.
    pub fn break_connection(&mut self, life: Life) {
        let Some(wire) = self.rng.pick(self.net.wires_of(life)).copied() else { return };
        self.trace.words(&[7, u64::from(wire.0)]);
        let arrivals = self.net.cut(wire, &mut self.rng, self.now);
        self.schedule(arrivals);
    }

    /// When an event happens that cannot happen now, because a process is stopped or a network is
    /// partitioned.
    pub(super) fn postponed_until(&self, event: &Event) -> Option<Duration> {
        let life = match event {
            Event::Arrive(wire, end) => {
                let life = self.net.life_at(*wire, *end)?;
                let other = self.net.life_at(*wire, 1 - *end)?;
                let host_of = |life: Life| self.members[life as usize].id.host;
                if !self.is_connected(host_of(life), host_of(other)) {
                    return Some(self.partition.1);
                }
                life
            }
            Event::Wake(id, _) => self.threads[id.0 as usize].life,
            Event::NodeTick(life) | Event::Dial(life, _) => *life,
            Event::Timer(_) => return None,
        };
        let until = self.stalled.get(&life).copied().filter(|until| *until > self.now)?;
        // A stopped process may continue earlier.
        Some(until.min(self.now + STALL_CHECK))
    }

    pub(super) fn is_connected(&self, one: HostId, other: HostId) -> bool {
        let (hosts, until) = &self.partition;
        *until <= self.now || hosts.contains(&one) == hosts.contains(&other)
    }

    pub(super) fn slowness_of(&self, host: HostId) -> u32 {
        self.slowness.get(&host).copied().unwrap_or(1)
    }
}
