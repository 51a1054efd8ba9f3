//! Arbitrary bytes as the descriptor in a handle: a decoded descriptor encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_data::PeerDescriptor;
use mesh_fuzz_targets::bounded;

const MEMORY_MAX: usize = 16 << 10;

fuzz_target!(|bytes: &[u8]| {
    bounded(MEMORY_MAX + 8 * bytes.len(), || {
        if let Some(descriptor) = PeerDescriptor::decode(bytes) {
            assert_eq!(descriptor.encode(), bytes);
        }
    });
});
