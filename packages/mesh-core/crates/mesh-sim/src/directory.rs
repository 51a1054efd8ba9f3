//! What programs know of each other without being told: which meshes there are, and who is where.

use crate::message::{Life, Region};
use mesh_runtime::node::Target;
use mesh_wire::id::{PortId, ProcId};
use std::sync::Arc;

/// A mesh as anybody may hold it. It may have stopped long ago.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Where its actors listen.
    pub port: PortId,
    /// Where its actors are.
    pub region: Region,
    /// One target for each rank.
    pub targets: Arc<[Target]>,
    /// Its actors call only meshes of a higher level.
    pub level: u32,
}

/// Every mesh of a world, and the process that lives at each place.
#[derive(Debug)]
pub struct Directory {
    slots: u32,
    handles: Vec<Handle>,
    lives: Vec<Option<Life>>,
}

impl Directory {
    /// Nobody is anywhere.
    pub fn new(hosts: u32, slots: u32) -> Self {
        let lives = vec![None; (hosts * slots) as usize];
        Self { slots, handles: Vec::new(), lives }
    }

    /// The place of a process in the order of all.
    pub fn place(&self, proc: ProcId) -> usize {
        (proc.host.0 * self.slots + proc.slot) as usize
    }

    /// The process at a place in the order of all.
    pub fn proc(&self, place: usize) -> ProcId {
        ProcId::new(place as u32 / self.slots, place as u32 % self.slots)
    }

    /// How many places there are.
    pub fn place_count(&self) -> usize {
        self.lives.len()
    }

    /// Who lives at a place.
    pub fn life(&self, proc: ProcId) -> Option<Life> {
        self.lives[self.place(proc)]
    }

    /// Somebody lives at a place from now on, or nobody.
    pub fn set_life(&mut self, proc: ProcId, life: Option<Life>) {
        let place = self.place(proc);
        self.lives[place] = life;
    }

    /// A mesh was asked for.
    pub fn add(&mut self, handle: Handle) {
        self.handles.push(handle);
    }

    /// Every mesh that was ever asked for, the oldest first.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

/// One target for each rank of a region.
pub fn targets(region: Region) -> Arc<[Target]> {
    (0..region.count()).map(|rank| Target { proc: region.proc(rank), rank }).collect()
}
