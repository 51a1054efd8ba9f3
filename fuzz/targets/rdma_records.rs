//! Encrypted records of mesh-rdma on a faulty link: only bytes that were encrypted are decrypted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_data::fuzzing::Sealed;
use mesh_fuzz_targets::{Input, bounded};

/// The buffers of both sides, the bytes on the link, and the plaintext written and read.
const MEMORY_MAX: usize = 2 << 20;
const STEPS_MAX: usize = 32;
/// The approximate maximum number of pieces in which the bytes on the link arrive.
const PIECES_MAX: usize = 64;
const WRITTEN_MAX: usize = 96 << 10;

fuzz_target!(|bytes: &[u8]| {
    let mut link = Sealed::new();
    bounded(MEMORY_MAX, || {
        let mut input = Input::new(bytes);
        let (mut written, mut read) = (Vec::new(), Vec::new());
        let mut is_changed = false;
        for _ in 0..STEPS_MAX {
            if input.is_empty() || written.len() > WRITTEN_MAX {
                break;
            }
            let plain = plain(&mut input);
            let (head, body) = plain.split_at(plain.len() / 3);
            let mut road = link.seal(head, body);
            written.extend_from_slice(&plain);
            is_changed |= trouble(&mut road, &mut input);
            let piece_len = usize::from(input.u16()).max(road.len() / PIECES_MAX).max(1);
            for piece in road.chunks(piece_len) {
                let Some(opened) = link.open(piece) else {
                    assert!(is_changed, "what was not touched is opened");
                    return;
                };
                read.extend_from_slice(&opened);
                assert!(written.starts_with(&read), "nothing comes out that was not put in");
            }
            assert!(is_changed || read.len() == written.len(), "what is whole is opened");
        }
    });
});

fn plain(input: &mut Input<'_>) -> Vec<u8> {
    if input.u8() % 8 == 0 {
        return vec![input.u8(); usize::from(input.u16())];
    }
    let len = usize::from(input.u8());
    input.take(len).to_vec()
}

/// Changes, truncates, drops or repeats bytes; returns whether it did.
fn trouble(road: &mut Vec<u8>, input: &mut Input<'_>) -> bool {
    let kind = input.u8();
    if kind < 192 || road.is_empty() {
        return false;
    }
    let place = usize::from(input.u16()) % road.len();
    match kind % 4 {
        0 => road[place] ^= input.u8().max(1),
        1 => road.truncate(place),
        2 => drop(road.drain(..place + 1)),
        _ => {
            let copy = road[place..].to_vec();
            road.extend(copy);
        }
    }
    true
}
