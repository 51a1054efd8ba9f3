//! Random cases that are the same ones on each run.

use proptest::test_runner::{Config, RngSeed};

/// At least `cases` cases from one seed. `PROPTEST_CASES` and `PROPTEST_RNG_SEED` ask for others.
pub(crate) fn config(cases: u32) -> Config {
    let asked = Config::default();
    let seed = match asked.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        fixed => fixed,
    };
    Config { cases: asked.cases.max(cases), rng_seed: seed, failure_persistence: None, ..asked }
}
