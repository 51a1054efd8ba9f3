//! Random cases that are identical in each run.

use proptest::test_runner::{Config, RngSeed};

/// At least `cases` cases from a fixed seed. `PROPTEST_CASES` raises the number of cases, and
/// `PROPTEST_RNG_SEED` selects another seed.
pub(crate) fn config(cases: u32) -> Config {
    let asked = Config::default();
    let seed = match asked.rng_seed {
        RngSeed::Random => RngSeed::Fixed(1),
        fixed => fixed,
    };
    Config { cases: asked.cases.max(cases), rng_seed: seed, failure_persistence: None, ..asked }
}
