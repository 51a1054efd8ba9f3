//! Ten thousand clients connect and do not finish: memory stays bounded, and members are served.

mod client_connections;

use client_connections::{LIMIT, TestListener, members, memory_len};
use mesh_runtime::engine::listener::ListenerLimits;
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::Write;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const HALF_OPEN: usize = 10_000;
const PENDING_MAX: usize = 1024;
/// Maximum memory per pending connection.
///
/// See `ten_thousand_half_open_connections_use_little_memory` in the tests of `mesh-trust`.
const MEMORY_PER_PENDING_MAX: usize = 24 << 10;

/// Connects from a loopback address that other clients do not use.
fn client(from: [u8; 4], to: SocketAddr) -> Option<TcpStream> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    rustix::net::bind(&socket, &SocketAddrV4::new(from.into(), 0)).ok()?;
    rustix::net::connect(&socket, &to).ok()?;
    Some(socket.into())
}

/// Raises the limit of descriptors of this process to its maximum; returns the maximum.
fn raise_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("up to the maximum it may");
    limit.maximum.and_then(|max| usize::try_from(max).ok()).unwrap_or(usize::MAX)
}

#[test]
fn ten_thousand_half_open_connections_take_bounded_memory_and_others_are_served() {
    // Both ends are in this process.
    let connections_max = (raise_descriptors() / 2).saturating_sub(PENDING_MAX).min(HALF_OPEN);
    let (worker, controller) = members();
    let limits = ListenerLimits { first_frame_max: LIMIT, pending_max: PENDING_MAX };
    let server = TestListener::open(worker, limits);
    assert!(server.serves(&controller), "before");
    let before = memory_len("VmRSS:");
    let mut connections = std::collections::VecDeque::with_capacity(connections_max);
    for count in 0..HALF_OPEN {
        let mut half_open = client([127, 0, 0, 2], server.at).expect("there are ports");
        // This is the head of a record of the maximum length, and nothing follows. The write fails
        // if the connection was already closed.
        let _ = half_open.write_all(&[22, 3, 1, 0x1f, 0xfa, 1]);
        connections.push_back(half_open);
        if connections.len() > connections_max {
            connections.pop_front();
        }
        if count % 1000 == 999 {
            assert!(server.serves(&controller), "after {count} half-open connections");
        }
    }
    let taken = memory_len("VmRSS:").saturating_sub(before);
    assert!(taken < PENDING_MAX * MEMORY_PER_PENDING_MAX, "{taken} bytes");
    drop(connections);
    assert!(server.serves(&controller), "afterwards");
}

#[test]
fn a_flood_from_one_origin_does_not_evict_connections_from_another() {
    raise_descriptors();
    let (worker, controller) = members();
    // So few that a flood would evict each one before it is authenticated.
    let limits = ListenerLimits { first_frame_max: Duration::from_secs(60), pending_max: 8 };
    let server = TestListener::open(worker, limits);
    let (is_over, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    opened.fetch_add(
                        usize::from(client([127, 0, 0, 3], server.at).is_some()),
                        Ordering::Relaxed,
                    );
                }
            });
        }
        let mut served = 0;
        while opened.load(Ordering::Relaxed) < 2000 {
            if server.serves(&controller) {
                served += 1;
            } else {
                is_over.store(true, Ordering::Relaxed);
                panic!("kept out after {served}");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(served > 0);
    });
}
