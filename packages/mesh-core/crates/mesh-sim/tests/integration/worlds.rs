//! Worlds are reproducible and violate no invariant.

use mesh_sim::{Options, regressions, run};
use std::process::Command;

fn small(seed: u64) -> Options {
    Options { procs: 12, steps: 200, ..Options::new(seed) }
}

#[test]
fn a_seed_reproduces_its_world() {
    for seed in 0..5 {
        let (first, again) = (run(small(seed)), run(small(seed)));
        assert_eq!(first, again);
    }
}

#[test]
fn different_seeds_and_sizes_produce_different_worlds() {
    let hash = |options| run(options).hash;
    let larger = Options { procs: 18, ..small(1) };
    let busier = Options { steps: 201, ..small(1) };
    let hashes = [hash(small(1)), hash(small(2)), hash(larger), hash(busier)];
    for (place, one) in hashes.iter().enumerate() {
        assert!(!hashes[..place].contains(one));
    }
}

#[test]
fn many_small_worlds_violate_no_invariant() {
    let mut probes = 0;
    for seed in 0..60 {
        let report = run(small(seed));
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert!(report.tally.received > 0, "seed {seed} is an empty world");
        probes += report.tally.probes;
    }
    assert!(probes > 0, "no agent was stopped for long enough to be probed");
}

#[test]
fn regression_worlds_violate_no_invariant() {
    let all: Vec<Options> = regressions().collect();
    assert!(!all.is_empty());
    for options in all {
        assert_eq!(run(options).violations, Vec::<String>::new(), "{options:?}");
    }
}

fn mesh_sim(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mesh-sim"))
        .args(arguments)
        .output()
        .expect("the program of this crate starts");
    let printed = String::from_utf8(output.stdout).expect("it prints text");
    (output.status.code().expect("it was not killed"), printed)
}

#[test]
fn one_seed_prints_its_hash_and_many_print_a_summary() {
    let one = ["--seed", "3", "--procs", "12", "--steps", "100"];
    let (status, printed) = mesh_sim(&one);
    assert_eq!(status, 0);
    assert!(printed.contains("trace hash "), "{printed}");
    assert_eq!(mesh_sim(&one).1, printed);
    let (status, printed) = mesh_sim(&["--seeds", "3", "--procs", "12", "--steps", "100"]);
    let all = 3 + regressions().count();
    assert_eq!((status, printed), (0, format!("{all} passed, 0 failed\n")));
}

#[test]
fn a_trace_lists_the_events() {
    let (_, printed) = mesh_sim(&["--seed", "3", "--procs", "6", "--steps", "20", "--trace"]);
    for word in ["starts as life 0", "dials 0.0", "Hello #0", "Spawn #"] {
        assert!(printed.contains(word), "no {word:?} in the trace");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    for wrong in [&["--sed", "1"][..], &["--seed"], &["--seed", "x"], &["--procs", "9999999999"]] {
        assert_eq!(mesh_sim(wrong).0, 2, "{wrong:?}");
    }
}
