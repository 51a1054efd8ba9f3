//! Any bytes in the place of a client: the server refuses them, within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_trust::handshake::HANDSHAKE_LEN_MAX;
use mesh_trust::{Authority, Identity, Role, Trust};
use mesh_wire::id::JobId;
use rustls_pki_types::UnixTime;
use std::sync::LazyLock;
use std::time::Duration;

static TRUST: LazyLock<Trust> = LazyLock::new(|| {
    let day = Duration::from_secs(86_400);
    let authority = Authority::create(JobId([7; 16]), day, UnixTime::now());
    let worker: Result<Identity, _> =
        authority.and_then(|one| one.issue(Role::Worker, "fuzzed", UnixTime::now()));
    worker.and_then(|one| Trust::new(&one, &Role::ALL)).expect("the keys are good")
});

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let mut server = TRUST.accept();
    let mut is_refused = false;
    for piece in [first, second] {
        let end = server.feed(piece);
        assert!(!is_refused || end.is_err(), "who is refused stays refused");
        is_refused |= end.is_err();
        assert!(!server.is_done(), "nobody guesses a signature");
        assert!(server.pending().len() <= 4096, "strangers get short answers");
    }
    assert!(is_refused || bytes.len() <= HANDSHAKE_LEN_MAX, "a handshake is short");
    assert!(server.finish().is_err(), "there is no link");
});
