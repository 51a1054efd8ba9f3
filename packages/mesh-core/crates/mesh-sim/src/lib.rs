//! A seeded simulation that drives the real Mesh state machines.
//!
//! [`run`] builds a world from a seed: hosts, processes, connections with individual latencies,
//! programs that call, cast, spawn and stop, and faults. Each process is a real
//! [`mesh_runtime::node::Node`] with a real [`mesh_runtime::supervise::Supervisor`]; only the
//! clock, the network and the programs are simulated. The seed determines everything, so a failure
//! can be reproduced with one command line.
//!
//! The [`oracle`] checks at all times that messages of one sender arrive in order and at most once,
//! that replies belong to their calls, and that only dead processes are reported as dead. When a
//! world has become quiescent, it checks that every wait has ended, that no message between live
//! processes was lost, that nothing outlived its owner, and that every failure was settled.
//!
//! # Layout
//! - [`rng`], [`queue`], [`trace`]: randomness, virtual time, and the hash of all events;
//! - [`plan`]: the parameters of the world that a seed determines;
//! - [`net`]: connections; [`world`]: the event loop, and the faults of connections and processes;
//! - [`process`]: one process; [`message`]: payloads; [`directory`]: the meshes and processes of a
//!   world;
//! - [`oracle`]: the invariants;
//! - [`cluster`]: processes whose programs run outside of the simulator, for `mesh_core.testing`;
//! - [`scale`]: a different kind of world, large and with few faults; [`heap`]: its memory use.

pub mod cluster;
pub mod directory;
pub mod heap;
pub mod message;
pub mod net;
pub mod oracle;
pub mod plan;
pub mod process;
pub mod queue;
pub mod rng;
pub mod scale;
pub mod trace;
pub mod world;

pub use plan::Options;
pub use world::{Report, run};

/// Worlds that found a bug once, from `regressions.txt`. They run before all others.
pub fn regressions() -> impl Iterator<Item = Options> {
    include_str!("../regressions.txt").lines().filter_map(|line| {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace().map(str::parse);
        let mut next = || words.next()?.ok();
        let (seed, procs, steps) = (next()?, next()?, next()?);
        let (procs, steps) = (procs as u32, steps as u32);
        Some(Options { procs, steps, ..Options::new(seed) })
    })
}
