//! Arbitrary bytes as the ledger of an earlier program: it is rejected, or contains some files.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::bounded;
use mesh_snapshot::{ChunkId, Ledger};

fuzz_target!(|rest: &[u8]| {
    // The checksum is correct, so that the bytes after it are decoded.
    let ledger = [b"meshkept\x01", &ChunkId::of(rest).0[..], rest].concat();
    // A fence of one byte becomes a row of 40 bytes; for names, see the target `tree`.
    bounded((64 << 10) + 256 * ledger.len(), || {
        if let Ok(ledger) = Ledger::decode(&ledger) {
            assert!(ledger.len() <= rest.len());
        }
        assert!(Ledger::decode(rest).is_err() || rest.starts_with(b"meshkept"));
    });
});
