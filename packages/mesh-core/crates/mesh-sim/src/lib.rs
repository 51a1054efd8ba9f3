//! A seeded world that drives the real Mesh state machines.
//!
//! [`run`] builds a world from a seed: hosts, processes, links with their own speeds, programs that
//! call, cast, spawn and stop, and the faults that befall them. Each process is a real
//! [`mesh_runtime::node::Node`] with a real [`mesh_runtime::supervise::Supervisor`]; only the
//! clock, the network and the programs are made up. Everything follows from the seed, so a failure
//! is a command line.
//!
//! Checked all the time, by [`oracle`]: messages of one sender arrive in order and at most once,
//! answers belong to their questions, only the dead are said to be dead. Checked when a world has
//! come to rest: every wait has ended, no message between the living was lost, nothing outlived its
//! owner, every failure came to one end.
//!
//! # Layout
//! - [`rng`], [`queue`], [`trace`]: chance, virtual time, and the hash of what happened;
//! - [`plan`]: what kind of world a seed makes;
//! - [`net`]: connections; [`world`]: what befalls them and the processes;
//! - [`process`]: one process; [`message`]: what they say; [`directory`]: whom they know;
//! - [`oracle`]: what must be true;
//! - [`scale`]: another kind of world, large and plain; [`heap`]: how much memory it takes.

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

/// Worlds that found a bug once, as in `regressions.txt`: they run before all others.
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
