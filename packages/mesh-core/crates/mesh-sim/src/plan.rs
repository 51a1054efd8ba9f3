//! The parameters of the world that a seed determines: its size, its latencies and its faults.

use crate::rng::{Rng, mix};
use std::time::Duration;

/// The options of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed, which determines everything else.
    pub seed: u64,
    /// Total number of processes, including the agents of hosts.
    pub procs: u32,
    /// Number of actions of the programs.
    pub steps: u32,
    /// Whether to print every event.
    pub is_traced: bool,
}

impl Options {
    /// A run of the default size: 1,000 processes and 1,500 actions.
    pub fn new(seed: u64) -> Self {
        Self { seed, procs: 1000, steps: 1500, is_traced: false }
    }
}

/// The parameters of one world. Each seed disables some faults and makes others frequent, because a
/// uniform mix of all faults finds fewer bugs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of hosts.
    pub hosts: u32,
    /// Processes per host, including the agent.
    pub slots: u32,
    /// The typical latency of a wire between hosts, in microseconds; the actual one is half to
    /// twice as long. Within a host it is a tenth.
    pub latency_us: u64,
    /// The maximum jitter in addition to the latency, in microseconds.
    pub jitter_us: u64,
    /// Meshes that the root spawns at the start.
    pub meshes: u32,
    /// Messages that one process may have outstanding at a mailbox.
    pub window: u32,
    /// Bytes that may be queued for a peer.
    pub backlog_bytes_max: usize,
    /// Number of hosts to which a host forwards a cast.
    pub fanout: u16,
    /// Number of processes that are killed.
    pub kills: u32,
    /// Number of slots to which kills and stalls are confined; 0 means all slots.
    pub hot_places: u32,
    /// How many of 1,000 killed processes are restarted without a request.
    pub restart_permille: u64,
    /// The maximum delay of such a restart, in microseconds.
    pub restart_us: u64,
    /// Number of connections that break.
    pub breaks: u32,
    /// Number of processes that are stopped temporarily.
    pub stalls: u32,
    /// Number of agents that are stopped for more than three heartbeats while their machines
    /// acknowledge.
    pub agent_stalls: u32,
    /// How many of 1,000 connection attempts fail although the peer is alive.
    pub refused_permille: u64,
    /// How many of 1,000 calls have a deadline.
    pub timeout_permille: u64,
    /// The relative frequency of each kind of work; see [`crate::message::Work`].
    pub work_weights: [u64; 7],
    /// The relative frequency of each program action; see `process::client`.
    pub action_weights: [u64; 8],
    /// The period in which programs act and faults occur.
    pub active: Duration,
}

impl Plan {
    /// Draws the parameters of a world.
    pub fn draw(options: &Options, rng: &mut Rng) -> Self {
        let hosts = (options.procs / 50).clamp(2, 4000);
        let slots = (options.procs / hosts).max(2);
        let mut sometimes = |most: u64| if rng.chance(300) { 0 } else { rng.between(1, most) };
        let hot_places = [0, 0, 1, 3][sometimes(3) as usize];
        let kills_max = if hot_places > 0 { 60 } else { u64::from(options.procs / 25).max(4) };
        let kills = sometimes(kills_max) as u32;
        let breaks = sometimes(u64::from(options.procs / 5).max(4)) as u32;
        let stalls = sometimes(u64::from(options.procs / 50).max(2)) as u32;
        // Drawn from a separate generator, so that adding this fault did not change the other
        // parameters of a seed.
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
            restart_permille: *rng.pick(&[0, 500, 1000]).expect("a fixed list"),
            restart_us: *rng.pick(&[500, 5000, 300_000]).expect("a fixed list"),
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
