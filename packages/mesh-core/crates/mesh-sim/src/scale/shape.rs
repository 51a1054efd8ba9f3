//! What a large world is made of.

use super::links::{FLAT, Links};
use crate::message::Life;
use mesh_runtime::node::Target;
use mesh_wire::id::ProcId;
use std::sync::Arc;

/// Actors on each host, if nothing else is asked for: as many as a host has accelerators.
pub const ACTORS_PER_HOST: u32 = 8;

/// The size of a world, its links, and what befalls it.
///
/// Each actor has a process of its own, as it has an accelerator of its own, and each host has its
/// agent besides. The agent of host 0 is the controller, whose program casts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Everything random follows from it.
    pub seed: u64,
    /// Actors in all: the ranks of one mesh.
    pub actors: u32,
    /// Machines.
    pub hosts: u32,
    /// How many hosts a host passes a cast on to.
    pub fanout: u16,
    /// What frames cost.
    pub links: Links,
    /// Seconds between signs of life of a host; 0 is none, and then no host dies.
    pub heartbeat_s: u32,
    /// How many actors, processes and hosts die.
    pub deaths: u32,
    /// The controller has sent some hosts more than others, one by one.
    pub is_uneven: bool,
}

impl Shape {
    /// So many actors, eight to a host, and nothing goes wrong.
    pub fn new(actors: u32) -> Self {
        let hosts = actors.div_ceil(ACTORS_PER_HOST);
        Self {
            seed: 0,
            actors,
            hosts,
            fanout: 16,
            links: FLAT,
            heartbeat_s: 0,
            deaths: 0,
            is_uneven: false,
        }
    }

    /// Processes on a host, its agent included.
    pub fn slots(&self) -> u32 {
        1 + self.per_host()
    }

    fn per_host(&self) -> u32 {
        self.actors.div_ceil(self.hosts)
    }

    /// Where a rank is.
    pub fn proc(&self, rank: u32) -> ProcId {
        ProcId::new(rank / self.per_host(), 1 + rank % self.per_host())
    }

    /// The rank in a process that is no agent.
    pub fn rank(&self, proc: ProcId) -> u32 {
        proc.host.0 * self.per_host() + proc.slot - 1
    }

    /// Processes are numbered by their places: nobody takes the place of the dead.
    pub fn life(&self, proc: ProcId) -> Life {
        proc.host.0 * self.slots() + proc.slot
    }

    /// The inverse of [`Shape::life`].
    pub fn at(&self, life: Life) -> ProcId {
        ProcId::new(life / self.slots(), life % self.slots())
    }

    /// Places for processes.
    pub fn lives(&self) -> u32 {
        self.hosts * self.slots()
    }

    /// Whether there is a process at a place: the last host may have fewer than the others.
    pub fn has(&self, proc: ProcId) -> bool {
        proc.slot == 0 || self.rank(proc) < self.actors
    }

    /// One target for each rank.
    pub fn targets(&self) -> Arc<[Target]> {
        (0..self.actors).map(|rank| Target { proc: self.proc(rank), rank }).collect()
    }
}
