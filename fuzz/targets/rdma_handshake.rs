//! Arbitrary bytes instead of a peer of mesh-rdma: a peer without a handle is never authenticated.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_data::fuzzing;
use mesh_fuzz_targets::bounded;

/// The memory that TLS needs to check a peer, and at most one record of the peer.
const MEMORY_MAX: usize = 256 << 10;

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let meet = match kind % 5 {
        0 => fuzzing::accept_tls,
        1 => fuzzing::connect_tls,
        2 => fuzzing::authenticate_local,
        3 => fuzzing::authenticate_loopback,
        _ => fuzzing::introduce_loopback,
    };
    bounded(MEMORY_MAX, || assert!(!meet(bytes), "nobody guesses a secret or a signature"));
});
