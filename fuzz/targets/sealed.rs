//! A member that encrypts arbitrary records with valid keys: the opener accepts only what TLS
//! allows.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded, members};
use mesh_trust::trust::server_name;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{ClientConnection, ConnectionTrafficSecrets};
use std::sync::Arc;

/// The buffer of an opener, and the records.
const MEMORY_MAX: usize = 512 << 10;
const RECORDS_MAX: usize = 32;

/// Encrypts arbitrary records.
struct RawSealer {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    number: u64,
}

impl RawSealer {
    /// Completes a handshake, and takes over the keys of the client.
    fn linked() -> (mesh_trust::SecureStream, Self) {
        let (worker, controller) = members();
        let mut server = worker.accept();
        let config = Arc::new(controller.client_config().expect("it can speak"));
        let mut client = ClientConnection::new(config, server_name()).expect("it can speak");
        while !server.is_done() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).expect("memory takes all");
            }
            server.feed(&bytes).expect("nothing was changed");
            let pending = server.pending().to_vec();
            server.sent(pending.len());
            let mut pending = pending.as_slice();
            while !pending.is_empty() {
                client.read_tls(&mut pending).expect("memory gives all");
                client.process_new_packets().expect("nothing was changed");
            }
        }
        let secrets = client.dangerous_extract_secrets().expect("the handshake is done");
        let (number, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) = secrets.tx else {
            panic!("it is the first in the list");
        };
        let key = UnboundKey::new(&AES_128_GCM, key.as_ref()).expect("it has the right length");
        let iv = iv.as_ref().try_into().expect("it has the right length");
        (server.finish().expect("it is done"), Self { key: LessSafeKey::new(key), iv, number })
    }

    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        let len = u16::try_from(inner.len() + 16).expect("a record is short");
        let [high, low] = len.to_be_bytes();
        let head = [23, 3, 3, high, low];
        let mut sealed = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(head), &mut sealed)
            .expect("it is short");
        [&head[..], &sealed].concat()
    }
}

fuzz_target!(|bytes: &[u8]| {
    let (mut server, mut raw_sealer) = RawSealer::linked();
    bounded(MEMORY_MAX, || {
        let mut input = Input::new(bytes);
        for _ in 0..RECORDS_MAX {
            if input.is_empty() || server.opener.is_closed() {
                break;
            }
            let padding_len =
                if input.u8() % 8 == 0 { usize::from(input.u16()) % 17_000 } else { 0 };
            let len = usize::from(input.u8());
            let inner = [input.take(len), &vec![0; padding_len]].concat();
            let record = raw_sealer.seal(&inner);
            // A record that exceeds the spare buffer is longer than permitted: its header is
            // rejected.
            let spare = server.opener.spare();
            let len = record.len().min(spare.len());
            spare[..len].copy_from_slice(&record[..len]);
            server.opener.filled(len);
            let plain_len = inner.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            match server.opener.open() {
                Ok(Some(plain)) => {
                    assert_eq!(plain, &inner[..plain_len], "it is what was sealed");
                    assert_eq!(inner[plain_len], 23, "it is sealed as data");
                }
                Ok(None) => assert!(server.sealer.pending().is_empty()),
                Err(_) => break,
            }
            if inner.get(plain_len) == Some(&22) {
                // The opener has a new key now, but the raw sealer still has the old one.
                break;
            }
            assert!(server.opener.open().is_ok(), "there is nothing more");
        }
    });
});
