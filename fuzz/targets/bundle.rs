//! Arbitrary bytes as a bundle of replies: it is rejected, or its replies encode to the same bytes.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::bounded;
use mesh_runtime::cast::bundle::{Packer, unpack};

const COUNT_MAX: usize = 64;

fuzz_target!(|bytes: &[u8]| {
    let body = Bytes::copy_from_slice(bytes);
    bounded((16 << 10) + 4 * bytes.len(), || {
        let Ok(entries) = unpack(&body, COUNT_MAX) else { return };
        assert!(entries.len() <= COUNT_MAX);
        let mut packer = Packer::new(bytes.len());
        for entry in &entries {
            packer.push(entry);
        }
        assert_eq!(packer.finish().concat(), bytes);
    });
});
