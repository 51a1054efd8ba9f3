//! What kind of world a seed makes: its size, its speeds, and what goes wrong in it.

use crate::rng::{Rng, mix};
use std::time::Duration;

/// What is asked of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Everything else follows from it.
    pub seed: u64,
    /// Processes in all, agents of hosts included.
    pub procs: u32,
    /// Things that programs do.
    pub steps: u32,
    /// Print every event.
    pub is_traced: bool,
}

impl Options {
    /// A run of the default size.
    pub fn new(seed: u64) -> Self {
        Self { seed, procs: 1000, steps: 1500, is_traced: false }
    }
}

/// One world. Each seed turns some dangers off and others up: a mix of everything finds less.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Machines.
    pub hosts: u32,
    /// Processes on each, the agent included.
    pub slots: u32,
    /// The shortest way of a frame, in microseconds, between hosts; on a host it is a tenth.
    pub latency_us: u64,
    /// What may come on top of it.
    pub jitter_us: u64,
    /// Meshes that the root spawns at the start.
    pub meshes: u32,
    /// Messages that one process may have outstanding at a mailbox.
    pub window: u32,
    /// Bytes that may wait for a peer.
    pub backlog_bytes_max: usize,
    /// How many hosts a host passes a cast on to.
    pub fanout: u16,
    /// Processes that are killed.
    pub kills: u32,
    /// How many places kills and stalls hit again and again; 0 is any.
    pub hot_places: u32,
    /// Killed processes, of 1,000, that somebody starts again unasked.
    pub revive_permille: u64,
    /// How soon at most.
    pub revive_us: u64,
    /// Links that break.
    pub breaks: u32,
    /// Processes that stand still for a while.
    pub stalls: u32,
    /// Agents that are stopped for longer than three heartbeats, while their machines acknowledge.
    pub agent_stalls: u32,
    /// Connection attempts, of 1,000, that fail though the peer lives.
    pub refused_permille: u64,
    /// Calls, of 1,000, that have a deadline.
    pub timeout_permille: u64,
    /// How often each kind of work is asked for; see [`crate::message::Work`].
    pub work_weights: [u64; 7],
    /// How often programs do each thing; see `process::client`.
    pub action_weights: [u64; 8],
    /// How long programs act and things go wrong.
    pub active: Duration,
}

impl Plan {
    /// The world of a seed.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let hosts = (options.procs / 50).clamp(2, 4000);
        let slots = (options.procs / hosts).max(2);
        let mut sometimes = |most: u64| if rng.chance(300) { 0 } else { rng.between(1, most) };
        let hot_places = [0, 0, 1, 3][sometimes(3) as usize];
        let kills_max = if hot_places > 0 { 60 } else { u64::from(options.procs / 25).max(4) };
        let kills = sometimes(kills_max) as u32;
        let breaks = sometimes(u64::from(options.procs / 5).max(4)) as u32;
        let stalls = sometimes(u64::from(options.procs / 50).max(2)) as u32;
        // Drawn apart, so that the rest of each seed's plan is what it was before agents stalled.
        let agent_stalls = Rng::new(mix(options.seed)).below(4) as u32;
        let refused_permille = sometimes(200);
        let timeout_permille = sometimes(600);
        let jitter_us = sometimes(3000);
        let work_weights = [
            40,
            sometimes(20),
            sometimes(20),
            sometimes(5),
            sometimes(10),
            sometimes(25),
            sometimes(3),
        ];
        let action_weights = [
            30,
            sometimes(25),
            sometimes(40),
            sometimes(10),
            sometimes(10),
            sometimes(8),
            sometimes(6),
            sometimes(3),
        ];
        Self {
            hosts,
            slots,
            latency_us: rng.between(10, 1000),
            jitter_us,
            meshes: rng.between(2, 10) as u32,
            window: *rng.pick(&[1, 2, 8, 64, 1024]).expect("a fixed list"),
            backlog_bytes_max: *rng.pick(&[256, 4096, 1 << 20]).expect("a fixed list"),
            fanout: rng.between(1, 8) as u16,
            kills,
            hot_places,
            revive_permille: *rng.pick(&[0, 500, 1000]).expect("a fixed list"),
            revive_us: *rng.pick(&[500, 5000, 300_000]).expect("a fixed list"),
            breaks,
            stalls,
            agent_stalls,
            refused_permille,
            timeout_permille,
            work_weights,
            action_weights,
            active: if rng.chance(300) {
                Duration::from_millis(rng.between(5, 100))
            } else {
                Duration::from_millis(rng.between(200, 3000))
            },
        }
    }
}
