//! Any bytes as what a program before has known of files: refused, or some files are known.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::bounded;
use mesh_snapshot::{ChunkId, Ledger};

fuzz_target!(|rest: &[u8]| {
    // The check is right, so that what is behind it is looked at.
    let ledger = [b"meshkept\x01", &ChunkId::of(rest).0[..], rest].concat();
    // A fence of one byte takes a row of 40; for names see the target of trees.
    bounded((64 << 10) + 256 * ledger.len(), || {
        if let Ok(ledger) = Ledger::decode(&ledger) {
            assert!(ledger.len() <= rest.len());
        }
        assert!(Ledger::decode(rest).is_err() || rest.starts_with(b"meshkept"));
    });
});
