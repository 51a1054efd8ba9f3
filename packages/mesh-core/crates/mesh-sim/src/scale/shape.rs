//! The parameters of a large world.

use super::links::{FLAT, Links};
use crate::message::Life;
use mesh_runtime::node::Target;
use mesh_wire::id::ProcId;
use std::sync::Arc;

/// The default number of actors per host: the usual number of accelerators.
pub const ACTORS_PER_HOST: u32 = 8;

/// The size of a world, its links and its faults.
///
/// Each actor has a dedicated process, as it has a dedicated accelerator, and each host has an
/// agent in addition. The agent of host 0 is the controller, whose program casts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The seed of all randomness.
    pub seed: u64,
    /// Total number of actors, which are the ranks of one mesh.
    pub actors: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of hosts to which a host forwards a cast.
    pub fanout: u16,
    /// The cost of frames.
    pub links: Links,
    /// The heartbeat interval in seconds; 0 disables heartbeats, and then no host dies.
    pub heartbeat_s: u32,
    /// Number of actors, processes and hosts that die.
    pub deaths: u32,
    /// Whether the controller has sent different numbers of messages to different hosts beforehand.
    pub is_uneven: bool,
}

impl Shape {
    /// A world without faults, with eight actors per host.
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

    /// Processes per host, including the agent.
    pub fn slots(&self) -> u32 {
        1 + self.per_host()
    }

    fn per_host(&self) -> u32 {
        self.actors.div_ceil(self.hosts)
    }

    /// The process of a rank.
    pub fn proc(&self, rank: u32) -> ProcId {
        ProcId::new(rank / self.per_host(), 1 + rank % self.per_host())
    }

    /// The rank of a process that is not an agent.
    pub fn rank(&self, proc: ProcId) -> u32 {
        proc.host.0 * self.per_host() + proc.slot - 1
    }

    /// The number of a process, which is derived from its slot because dead processes are not
    /// replaced.
    pub fn life(&self, proc: ProcId) -> Life {
        proc.host.0 * self.slots() + proc.slot
    }

    /// The inverse of [`Shape::life`].
    pub fn at(&self, life: Life) -> ProcId {
        ProcId::new(life / self.slots(), life % self.slots())
    }

    /// Number of slots.
    pub fn lives(&self) -> u32 {
        self.hosts * self.slots()
    }

    /// Whether a slot has a process: the last host may have fewer than the others.
    pub fn has(&self, proc: ProcId) -> bool {
        proc.slot == 0 || self.rank(proc) < self.actors
    }

    /// Creates one target for each rank.
    pub fn targets(&self) -> Arc<[Target]> {
        (0..self.actors).map(|rank| Target { proc: self.proc(rank), rank }).collect()
    }
}
