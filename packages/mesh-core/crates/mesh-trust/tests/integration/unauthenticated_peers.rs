//! Any input of an unauthenticated peer is refused with an explanation, and uses bounded memory.

use crate::pair;
use crate::pair::{JOB, NOW, both, identity, trust_at};
use mesh_trust::handshake::HANDSHAKE_LEN_MAX;
use mesh_trust::{Handshake, Role, TrustError};
use proptest::prelude::*;

fn server() -> Handshake {
    trust_at(&identity(&pair::authority(JOB), Role::Worker), &Role::ALL, NOW).accept()
}

/// The result of feeding the bytes to a server, in pieces of this length.
fn answer(bytes: &[u8], piece_len: usize) -> (Result<(), TrustError>, Handshake) {
    let mut server = server();
    for piece in bytes.chunks(piece_len) {
        if let Err(error) = server.feed(piece) {
            return (Err(error), server);
        }
    }
    (Ok(()), server)
}

#[track_caller]
fn check_refused(bytes: &[u8], words: &str) {
    for piece_len in [usize::MAX, 1] {
        let (end, server) = answer(bytes, piece_len);
        let said = end.expect_err("it is no member").to_string();
        assert!(said.contains(words), "{said}");
        assert_eq!(server.pending()[0], 21, "the peer gets an alert");
        assert!(server.finish().is_err(), "there is no link");
    }
}

#[test]
fn the_error_for_an_http_client_shows_its_first_bytes() {
    let (end, _) = answer(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", usize::MAX);
    let said = end.expect_err("it is no member").to_string();
    assert_eq!(
        said,
        "the peer does not speak TLS: its first bytes are \"GET / HTTP/1.1\\\\r\\\\n\": \
         only mesh processes with credentials of this job may connect to this port"
    );
    check_refused(b"GET / HTTP/1.1\r\n\r\n", "does not speak TLS");
}

#[test]
fn a_mesh_process_without_credentials_is_refused_at_its_first_byte() {
    let mut server = server();
    assert!(matches!(server.feed(&[0xa7]), Err(TrustError::NotTls { .. })));
}

#[test]
fn an_old_tls_version_is_refused() {
    // A client hello of TLS 1.2: no extension offers a newer version.
    let mut body = vec![3, 3];
    body.extend([9; 32]);
    body.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    let curves = [0, 10, 0, 4, 0, 2, 0, 23];
    let signatures = [0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, 16]);
    body.extend(curves);
    body.extend(signatures);
    check_refused(&hello(&body), "another version of TLS");
}

fn hello(body: &[u8]) -> Vec<u8> {
    let message_len = u16::try_from(body.len()).expect("it is short");
    let [high, low] = message_len.to_be_bytes();
    let [record_high, record_low] = (message_len + 4).to_be_bytes();
    [&[22, 3, 1, record_high, record_low, 1, 0, high, low], body].concat()
}

#[test]
fn an_oversized_hello_is_refused_by_its_header() {
    let len = u16::try_from(HANDSHAKE_LEN_MAX).expect("it is short");
    let [high, low] = len.to_be_bytes();
    check_refused(&[22, 3, 1, high, low], "more than 8192 bytes");
}

#[test]
fn a_message_split_into_many_records_is_refused() {
    // One message of 16,000 bytes, split into records of one byte.
    let mut bytes = Vec::new();
    for byte in [1, 0, 62, 128].into_iter().chain([3; 16_000]) {
        bytes.extend([22, 3, 1, 0, 1, byte]);
    }
    let (end, _) = answer(&bytes, 1000);
    let said = end.expect_err("it leads nowhere").to_string();
    assert!(said.contains("bytes before it authenticated") || said.contains("violated"), "{said}");
}

#[test]
fn a_handshake_truncated_anywhere_fails() {
    let authority = pair::authority(JOB);
    let (worker, controller) =
        (identity(&authority, Role::Worker), identity(&authority, Role::Controller));
    for cut in (0..3000).step_by(37) {
        let (mut server, mut client) = both(&worker, &controller);
        let mut left = cut;
        for _ in 0..3 {
            let len = client.pending().len().min(left);
            let bytes = client.pending()[..len].to_vec();
            client.sent(len);
            left -= len;
            server.feed(&bytes).expect("what came is right");
            let bytes = server.pending().to_vec();
            server.sent(bytes.len());
            client.feed(&bytes).expect("what came is right");
        }
        if left == 0 && !client.pending().is_empty() {
            assert_eq!(server.closed(), TrustError::Closed);
            assert!(server.finish().is_err(), "cut after {cut} bytes");
        }
    }
}

#[test]
fn a_handshake_with_a_flipped_bit_fails() {
    let authority = pair::authority(JOB);
    let (worker, controller) =
        (identity(&authority, Role::Worker), identity(&authority, Role::Controller));
    for place in (0_usize..2400).step_by(41) {
        let (mut server, mut client) = both(&worker, &controller);
        let mut passed_len = 0;
        let mut is_refused = false;
        for _ in 0..3 {
            let mut bytes = client.pending().to_vec();
            client.sent(bytes.len());
            if let Some(byte) = bytes.get_mut(place.saturating_sub(passed_len))
                && place >= passed_len
            {
                *byte ^= 1;
                is_refused = true;
            }
            passed_len += bytes.len();
            if server.feed(&bytes).is_err() {
                break;
            }
            let bytes = server.pending().to_vec();
            server.sent(bytes.len());
            if client.feed(&bytes).is_err() {
                break;
            }
        }
        assert!(!(is_refused && server.is_done() && client.is_done()), "bit at {place}");
    }
}

#[test]
fn a_pending_handshake_uses_little_memory() {
    assert!(size_of::<Handshake>() <= 256, "{}", size_of::<Handshake>());
}

#[test]
fn the_errors_describe_a_timeout_and_a_closed_connection() {
    let server = server();
    let said = server.too_slow(std::time::Duration::from_secs(10)).to_string();
    assert!(said.starts_with("the peer did not authenticate within 10 s"), "{said}");
    assert!(server.closed().to_string().starts_with("the connection ended before both sides"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_complete_a_handshake(
        bytes in prop::collection::vec(any::<u8>(), 1..2000),
    ) {
        let (_, server) = answer(&bytes, 700);
        prop_assert!(!server.is_done());
    }

    #[test]
    fn arbitrary_hello_bytes_never_complete_a_handshake(
        body in prop::collection::vec(any::<u8>(), 1..2000),
    ) {
        let (_, server) = answer(&hello(&body), 700);
        prop_assert!(!server.is_done());
        prop_assert!(server.pending().len() < 4000);
    }

    #[test]
    fn a_modified_hello_never_completes_a_handshake(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let client = identity(&pair::authority(JOB), Role::Controller);
        let client = trust_at(&client, &Role::ALL, NOW).connect().expect("it can speak");
        let mut bytes = client.pending().to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let (_, server) = answer(&bytes, 700);
        prop_assert!(!server.is_done());
    }
}
