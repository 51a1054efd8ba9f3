//! Large worlds in a size for tests: every live actor is reached, and only dead ones are missed.

use mesh_sim::heap::Heap;
use mesh_sim::scale::{Cast, Shape, run};

#[global_allocator]
static HEAP: Heap = Heap;

fn shape(actors: u32) -> Shape {
    Shape { heartbeat_s: 1, fanout: 4, ..Shape::new(actors) }
}

#[test]
fn a_shape_reproduces_its_world_and_another_seed_changes_it() {
    let deadly = Shape { deaths: 20, ..shape(400) };
    let hashes = [0, 0, 1].map(|seed| run(Shape { seed, ..deadly }).hash);
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
}

#[test]
fn casts_complete_and_only_dead_ranks_get_faults() {
    for seed in 0..6 {
        let is_uneven = seed % 2 == 1;
        let report = run(Shape { seed, deaths: 60, is_uneven, ..shape(600) });
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(report.died.iter().sum::<u32>(), 60, "seed {seed}");
        let last = report.with_failures.last().map(|cast| cast.faults);
        let [actors, procs, hosts] = report.died;
        assert_eq!(last, Some([actors, procs, hosts * 8, 0]), "seed {seed}");
    }
}

#[test]
fn a_cast_leaves_a_host_in_fanout_frames_and_its_replies_return_merged() {
    let Cast { load, faults, .. } = run(shape(800)).steady;
    assert_eq!(faults, [0; 4]);
    // Down to four other hosts, and up to one.
    assert!(load.busiest_host.frames <= 5, "{load:?}");
    // Each of the 99 other hosts receives one frame and sends one.
    assert_eq!(load.total.frames, 2 * 99);
}

#[test]
fn latency_grows_with_the_depth_of_the_tree_and_not_with_the_hosts() {
    let [small, large] = [800, 8000].map(|actors| run(shape(actors)).steady.reached_ns);
    assert!(large < small * 3, "{small} ns to 800 actors, {large} ns to 8,000");
}

#[test]
fn a_spawn_takes_two_frames_for_each_host_and_each_new_link() {
    let spawn = run(shape(800)).spawn;
    assert_eq!(spawn.faults, [0; 4]);
    // The controller forwards the spawn to four of the 99 other hosts. The other 95 links of the
    // tree are new: each needs a greeting and its reply.
    assert_eq!(spawn.load.total.frames, 2 * 99 + 2 * 95);
}

#[test]
fn an_idle_actor_takes_less_than_four_kilobytes() {
    let memory = run(shape(4000)).memory;
    assert!(memory.idle > 0, "nothing was counted");
    assert!(memory.idle < 4000 * 4096, "{} bytes an actor", memory.idle / 4000);
}
