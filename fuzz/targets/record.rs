//! Encrypted records on a faulty link: only records that were encrypted are decrypted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded, linked};
use mesh_trust::{Sealer, TlsError};
use std::io::IoSlice;

/// The buffers of a sealer and an opener, a copy of the bytes on the link, and the plaintext
/// written and read.
const MEMORY_MAX: usize = 2 << 20;
const STEPS_MAX: usize = 64;
/// Number of plaintext bytes after which the client writes no more.
const WRITTEN_MAX: usize = 256 << 10;

/// The bytes between the two sides, and whether they were changed.
#[derive(Default)]
struct FaultyLink {
    bytes: Vec<u8>,
    is_changed: bool,
}

fuzz_target!(|bytes: &[u8]| {
    let (mut server, mut client) = linked();
    bounded(MEMORY_MAX, || {
        let mut input = Input::new(bytes);
        let (mut link, mut written, mut read) = (FaultyLink::default(), Vec::new(), Vec::new());
        for _ in 0..STEPS_MAX {
            if input.is_empty() || written.len() > WRITTEN_MAX {
                break;
            }
            seal(&mut client.sealer, &mut input, &mut written);
            let sealed = client.sealer.pending();
            link.bytes.extend_from_slice(sealed);
            let len = sealed.len();
            client.sealer.sent(len);
            link.inject_fault(&mut input);
            let end = open(&mut server.opener, &mut link, &mut input, &mut read);
            assert!(written.starts_with(&read), "nothing comes out that was not put in");
            if end.is_err() {
                assert!(link.is_changed, "what was not touched is opened: {end:?}");
                assert!(server.opener.open().is_err() || server.opener.is_closed());
                return;
            }
        }
    });
});

fn seal(sealer: &mut Sealer, input: &mut Input<'_>, written: &mut Vec<u8>) {
    match input.u8() % 8 {
        0 => drop(sealer.update_key()),
        1 => drop(sealer.close()),
        2 => {
            let long = vec![written.len() as u8; usize::from(input.u16())];
            write(sealer, &long, written);
        }
        _ => {
            let len = usize::from(input.u8());
            write(sealer, input.take(len), written);
        }
    }
}

fn write(sealer: &mut Sealer, plain: &[u8], written: &mut Vec<u8>) {
    let (first, second) = plain.split_at(plain.len() / 2);
    if let Ok(taken) = sealer.write(&[IoSlice::new(first), IoSlice::new(second)]) {
        written.extend_from_slice(&plain[..taken]);
    }
}

impl FaultyLink {
    fn inject_fault(&mut self, input: &mut Input<'_>) {
        let kind = input.u8();
        if kind < 192 || self.bytes.is_empty() {
            return;
        }
        let place = usize::from(input.u16()) % self.bytes.len();
        self.is_changed = true;
        match kind % 4 {
            0 => self.bytes[place] ^= input.u8().max(1),
            1 => self.bytes.truncate(place),
            2 => drop(self.bytes.drain(..place + 1)),
            _ => {
                let copy = self.bytes[place..].to_vec();
                self.bytes.extend(copy);
            }
        }
    }
}

fn open(
    opener: &mut mesh_trust::Opener,
    link: &mut FaultyLink,
    input: &mut Input<'_>,
    read: &mut Vec<u8>,
) -> Result<(), TlsError> {
    let piece_len = usize::from(input.u16()).max(1);
    while !link.bytes.is_empty() {
        let spare = opener.spare();
        let len = spare.len().min(piece_len).min(link.bytes.len());
        spare[..len].copy_from_slice(&link.bytes[..len]);
        opener.filled(len);
        link.bytes.drain(..len);
        while let Some(plain) = opener.open()? {
            read.extend_from_slice(plain);
        }
    }
    Ok(())
}
