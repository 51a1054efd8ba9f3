//! A handshake of two members with bytes changed in transit: it fails, or creates a working link.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{carry, members};
use mesh_trust::{Handshake, Role};
use std::io::IoSlice;

// Each change is three bytes: two select an offset in everything that is sent, and the third
// contains the bits to flip there.
fuzz_target!(|changes: &[u8]| {
    let (worker, controller) = members();
    let (mut server, mut client) =
        (worker.accept(), controller.connect().expect("there is randomness"));
    let mut passed_len = 0;
    let mut is_changed = false;
    for _ in 0..3 {
        let mut change = |bytes: &mut Vec<u8>| {
            is_changed |= change_some(bytes, changes, passed_len);
            passed_len += bytes.len();
        };
        let to_server = carry(&mut client, &mut server, &mut change);
        let to_client = carry(&mut server, &mut client, &mut change);
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

/// Applies the changes to `bytes`, which start at offset `start` of everything that is sent.
fn change_some(bytes: &mut [u8], changes: &[u8], start: usize) -> bool {
    let mut is_changed = false;
    for change in changes.chunks_exact(3) {
        let place = usize::from(u16::from_le_bytes([change[0], change[1]]) % 4096);
        if let Some(byte) = place.checked_sub(start).and_then(|place| bytes.get_mut(place)) {
            *byte ^= change[2];
            is_changed |= change[2] != 0;
        }
    }
    is_changed
}

/// The changed bytes had no meaning: both sides agree on their roles and on their keys.
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
