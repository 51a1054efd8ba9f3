//! Arbitrary requests of an authenticated client: the owner writes only to its registration.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_data::frame::{REPLY_LEN, REQUEST_LEN, Reply, Request};
use mesh_data::fuzzing::Served;
use mesh_fuzz_targets::{Input, bounded};

/// A chunk that cannot be written to its destination, a domain, and the replies.
const MEMORY_MAX: usize = 4 << 20;
const REQUESTS_MAX: usize = 32;
/// Maximum length of a body that follows a request.
const BODY_LEN_MAX: usize = 600;

fuzz_target!(|bytes: &[u8]| {
    decode(bytes);
    bounded(MEMORY_MAX, || {
        let served = Served::new();
        let replies = served.serve(&requests(&mut Input::new(bytes), &served));
        assert!(served.is_around_unchanged(), "only the registration is written");
        if let Some(greeting) = replies.first_chunk::<REPLY_LEN>() {
            assert!(Reply::decode(greeting).is_some());
        }
    });
});

/// Checks that decoding is the inverse of encoding, except for bytes without a meaning.
fn decode(bytes: &[u8]) {
    if let Some(head) = bytes.first_chunk::<REQUEST_LEN>()
        && let Some(request) = Request::decode(head)
    {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    if let Some(head) = bytes.first_chunk::<REPLY_LEN>()
        && let Some(reply) = Reply::decode(head)
    {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

/// Returns requests with the right key or another one, in and out of bounds.
fn requests(input: &mut Input<'_>, served: &Served) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..REQUESTS_MAX {
        if input.is_empty() {
            break;
        }
        let mut head = [0; REQUEST_LEN];
        head[0] = input.u8() % 14;
        let slot = if input.u8() % 8 == 0 { input.u32() } else { served.slot };
        let key = if input.u8() % 8 == 0 { input.u64() } else { served.key };
        head[4..8].copy_from_slice(&slot.to_le_bytes());
        head[8..16].copy_from_slice(&key.to_le_bytes());
        for word in head[16..].chunks_exact_mut(8) {
            let number = match input.u8() % 8 {
                0 => input.u64(),
                1 => u64::from(input.u16()),
                2 => u64::MAX - u64::from(input.u8()),
                _ => u64::from(input.u8()),
            };
            word.copy_from_slice(&number.to_le_bytes());
        }
        stream.extend_from_slice(&head);
        let body_len = usize::from(input.u16()) % BODY_LEN_MAX;
        stream.extend_from_slice(input.take(body_len));
    }
    stream
}
