//! A handshake of two members, with bytes changed on their way: no link, or a whole one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_trust::{Authority, Handshake, Role, Trust, TrustError};
use mesh_wire::id::JobId;
use rustls_pki_types::UnixTime;
use std::io::IoSlice;
use std::sync::LazyLock;
use std::time::Duration;

static MEMBERS: LazyLock<(Trust, Trust)> = LazyLock::new(|| {
    let day = Duration::from_secs(86_400);
    let authority =
        Authority::create(JobId([7; 16]), day, UnixTime::now()).expect("a day is a good lifetime");
    let member = |role| {
        let identity = authority.issue(role, "fuzzed", UnixTime::now());
        identity.and_then(|one| Trust::new(&one, &Role::ALL)).expect("the keys are good")
    };
    (member(Role::Worker), member(Role::Controller))
});

/// Each change is three bytes: two say where, counted over all that is sent, and one what to flip.
fuzz_target!(|changes: &[u8]| {
    let (mut server, mut client) =
        (MEMBERS.0.accept(), MEMBERS.1.connect().expect("there is randomness"));
    let mut passed_len = 0;
    let mut is_changed = false;
    for _ in 0..3 {
        let to_server = carry(&mut client, &mut server, changes, &mut passed_len, &mut is_changed);
        let to_client = carry(&mut server, &mut client, changes, &mut passed_len, &mut is_changed);
        if to_server.and(to_client).is_err() {
            break;
        }
    }
    let is_link = server.is_done() && client.is_done();
    assert!(is_link || is_changed, "what was not changed makes a link");
    if is_link {
        talk(server, client);
    }
});

/// Only bytes that mean nothing were changed: both sides agree on who they are and on their keys.
fn talk(server: Handshake, client: Handshake) {
    let mut server = server.finish().expect("it is done");
    let mut client = client.finish().expect("it is done");
    assert_eq!((server.peer.role(), client.peer.role()), (Role::Controller, Role::Worker));
    assert_eq!(client.sealer.write(&[IoSlice::new(b"agreed")]), Ok(6));
    let sealed = client.sealer.pending();
    server.opener.spare()[..sealed.len()].copy_from_slice(sealed);
    server.opener.filled(sealed.len());
    assert_eq!(server.opener.open(), Ok(Some(&b"agreed"[..])));
}

fn carry(
    from: &mut Handshake,
    to: &mut Handshake,
    changes: &[u8],
    passed_len: &mut usize,
    is_changed: &mut bool,
) -> Result<(), TrustError> {
    let before = from.pending().to_vec();
    let mut bytes = before.clone();
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]) % 4096);
        if let Some(byte) = place.checked_sub(*passed_len).and_then(|place| bytes.get_mut(place)) {
            *byte ^= change[2];
        }
    }
    *is_changed |= bytes != before;
    *passed_len += bytes.len();
    from.sent(bytes.len());
    to.feed(&bytes)
}
