//! Arbitrary bytes instead of a client: the server rejects them and uses bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{bounded, members};
use mesh_trust::handshake::HANDSHAKE_LEN_MAX;

/// The stored bytes of an unauthenticated peer, and the memory that TLS needs to check them.
const MEMORY_MAX: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let worker = &members().0;
    bounded(MEMORY_MAX, || {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let mut server = worker.accept();
        let mut is_refused = false;
        for piece in [first, second] {
            let end = server.feed(piece);
            assert!(!is_refused || end.is_err(), "a refused handshake stays refused");
            is_refused |= end.is_err();
            assert!(!server.is_done(), "nobody guesses a signature");
            assert!(server.pending().len() <= 4096, "an unauthenticated peer gets short replies");
        }
        assert!(is_refused || bytes.len() <= HANDSHAKE_LEN_MAX, "a handshake is short");
        assert!(server.finish().is_err(), "there is no link");
    });
});
