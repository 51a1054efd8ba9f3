//! Shared knowledge of all programs of a world: its meshes, and the live process of each slot.

use crate::message::{Life, Region};
use mesh_runtime::node::Target;
use mesh_wire::id::{PortId, ProcId};
use std::sync::Arc;

/// A handle of a mesh that any program may use. The mesh may have stopped long ago.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The port of the actors.
    pub port: PortId,
    /// The processes of the actors.
    pub region: Region,
    /// One target for each rank.
    pub targets: Arc<[Target]>,
    /// The level of the mesh: its actors call only meshes of a higher level.
    pub level: u32,
}

/// Every mesh of a world, and the live process of each slot.
#[derive(Debug)]
pub struct Directory {
    slots: u32,
    handles: Vec<Handle>,
    lives: Vec<Option<Life>>,
}

impl Directory {
    /// Creates a directory without processes and meshes.
    pub fn new(hosts: u32, slots: u32) -> Self {
        let lives = vec![None; (hosts * slots) as usize];
        Self { slots, handles: Vec::new(), lives }
    }

    /// The index of a process's slot among all slots of the world.
    pub fn place(&self, proc: ProcId) -> usize {
        (proc.host.0 * self.slots + proc.slot) as usize
    }

    /// The process at an index of the world's slots.
    pub fn proc(&self, place: usize) -> ProcId {
        ProcId::new(place as u32 / self.slots, place as u32 % self.slots)
    }

    /// Number of slots in the world.
    pub fn place_count(&self) -> usize {
        self.lives.len()
    }

    /// The live process of a slot, if there is one.
    pub fn life(&self, proc: ProcId) -> Option<Life> {
        self.lives[self.place(proc)]
    }

    /// Sets or removes the live process of a slot.
    pub fn set_life(&mut self, proc: ProcId, life: Option<Life>) {
        let place = self.place(proc);
        self.lives[place] = life;
    }

    /// Adds a mesh whose spawn was requested.
    pub fn add(&mut self, handle: Handle) {
        self.handles.push(handle);
    }

    /// Every mesh whose spawn was ever requested, oldest first.
    pub fn handles(&self) -> &[Handle] {
        &self.handles
    }
}

/// Creates one target for each rank of a region.
pub fn targets(region: Region) -> Arc<[Target]> {
    (0..region.count()).map(|rank| Target { proc: region.proc(rank), rank }).collect()
}
