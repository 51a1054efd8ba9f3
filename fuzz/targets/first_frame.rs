//! Arbitrary bytes instead of the first frame, from an unauthenticated and an authenticated peer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded, linked};
use mesh_runtime::engine::channel::Channel;
use mesh_wire::frame::Kind;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use std::io::IoSlice;
use std::time::{Duration, Instant};

/// The longest first frame, and the bytes that are read ahead on an encrypted connection.
const MEMORY_MAX: usize = 160 << 10;
/// The number of bytes that a socket accepts in one call.
const SENT_LEN_MAX: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Input::new(bytes);
    let is_sealed = input.u8() % 2 == 1;
    let record_len = usize::from(input.u8());
    let frame = input.rest();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .expect("there are descriptors");
    let (secure, sent) = if is_sealed {
        let (server, mut client) = linked();
        for record in frame.chunks(record_len.max(1)) {
            let _ = client.sealer.write(&[IoSlice::new(record)]);
        }
        (Some(server), client.sealer.pending().to_vec())
    } else {
        (None, frame.to_vec())
    };
    let len = sent.len().min(SENT_LEN_MAX);
    let _ = send(&far, &sent[..len], SendFlags::NOSIGNAL);
    drop(far);
    let mut channel = Channel { stream: near, secure };
    bounded(MEMORY_MAX, || {
        let until = Instant::now() + Duration::from_secs(10);
        if let Ok(first) = channel.receive_first(&[Kind::Hello, Kind::Attach], until) {
            assert!(matches!(first.head.kind, Kind::Hello | Kind::Attach));
            let encoded = [first.head.encode(first.tail.len()).as_slice(), &first.tail].concat();
            assert!(frame.starts_with(&encoded), "it is what was sent");
        }
    });
});
