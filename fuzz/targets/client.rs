//! Arbitrary bytes instead of a server: the client rejects them and uses bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{bounded, members};
use mesh_trust::handshake::HANDSHAKE_LEN_MAX;

/// The stored bytes of an unauthenticated peer, and the memory that TLS needs to check them.
const MEMORY_MAX: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let controller = &members().1;
    bounded(MEMORY_MAX, || {
        let (first, second) = bytes.split_at(bytes.len() / 3);
        let mut client = controller.connect().expect("there is randomness");
        let hello_len = client.pending().len();
        client.sent(hello_len);
        let mut is_refused = false;
        for piece in [first, second] {
            let end = client.feed(piece);
            assert!(!is_refused || end.is_err(), "a refused handshake stays refused");
            is_refused |= end.is_err();
            assert!(!client.is_done(), "nobody guesses a signature");
            assert!(client.pending().len() <= 4096, "an unauthenticated peer gets short replies");
        }
        assert!(is_refused || bytes.len() <= HANDSHAKE_LEN_MAX, "a handshake is short");
        assert!(client.finish().is_err(), "there is no link");
    });
});
