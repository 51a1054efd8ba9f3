//! A pending connection uses bounded resources of the listener for a bounded time.

use crate::client_connections::{LIMIT, TestListener, bare, head, members, send_raw, wait_closed};
use mesh_runtime::engine::channel::Channel;
use mesh_runtime::engine::listener::{Listener, ListenerLimits};
use mesh_wire::frame::Kind;
use rustix::net::SendFlags;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Long enough to be accepted, but short enough to pass quickly.
const SHORT_LIMITS: ListenerLimits =
    ListenerLimits { first_frame_max: Duration::from_millis(100), pending_max: 64 };
/// A connection that ends under these limits has not run out of time.
const LONG_LIMITS: ListenerLimits = ListenerLimits { first_frame_max: LIMIT, pending_max: 64 };

#[test]
fn a_member_that_sends_a_greeting_is_accepted() {
    let (worker, controller) = members();
    assert!(TestListener::open(worker, LONG_LIMITS).serves(&controller));
}

#[test]
fn a_silent_client_is_disconnected() {
    let server = TestListener::open(members().0, SHORT_LIMITS);
    let client = TcpStream::connect(server.at).expect("it listens");
    wait_closed(&client);
}

#[test]
fn a_client_that_sends_single_bytes_is_disconnected() {
    let (worker, controller) = members();
    let server = TestListener::open(worker, SHORT_LIMITS);
    let hello = controller.connect().expect("there is randomness").pending().to_vec();
    let mut slow = TcpStream::connect(server.at).expect("it listens");
    slow.set_read_timeout(Some(Duration::from_millis(5))).expect("it is a socket");
    let begun = Instant::now();
    let mut sent = 0;
    let end = loop {
        // A handshake at this pace would take seconds; bytes sent after its end are lost.
        sent += slow.write(&hello[sent..=sent]).unwrap_or(0);
        match slow.read(&mut [0; 16]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            end => break end,
        }
        assert!(begun.elapsed() < LIMIT, "it is still there after {sent} bytes");
    };
    assert!(matches!(end, Ok(0) | Err(_)), "it was told {end:?}");
    assert!(sent < hello.len(), "it got no further");
}

#[test]
fn an_authenticated_client_without_a_greeting_is_disconnected() {
    let (worker, controller) = members();
    // This suffices for a handshake on a busy machine.
    let limits = ListenerLimits { first_frame_max: Duration::from_secs(1), ..SHORT_LIMITS };
    let server = TestListener::open(worker, limits);
    let mut silent = server.connect(&controller).expect("it is a member");
    wait_closed(&silent.stream);
    let mut halfway = server.connect(&controller).expect("it is a member");
    send_raw(&mut halfway, &head(Kind::Hello, 72)[..63]);
    wait_closed(&halfway.stream);
    assert!(silent.receive_first(&[Kind::Welcome], Instant::now() + LIMIT).is_err());
}

/// Sends these bytes instead of a greeting; the connection must close.
///
/// This is checked without and with credentials.
#[track_caller]
fn check_refused(bytes: &[u8]) {
    let (worker, controller) = members();
    let server = TestListener::open(worker, LONG_LIMITS);
    let mut channels = [
        Channel { stream: TcpStream::connect(server.at).expect("it listens").into(), secure: None },
        server.connect(&controller).expect("it is a member"),
    ];
    for channel in &mut channels {
        send_raw(channel, bytes);
        let begun = Instant::now();
        wait_closed(&channel.stream);
        assert!(begun.elapsed() < LIMIT / 2, "it was judged by what came");
        assert!(server.accepted.try_recv().is_err(), "nobody was let through");
        assert!(server.serves(&controller), "others are served");
    }
}

#[test]
fn an_oversized_first_frame_is_refused_by_its_header() {
    check_refused(&head(Kind::Hello, 1 << 20));
    check_refused(&head(Kind::Hello, (1 << 30) + 1));
}

#[test]
fn a_first_frame_that_is_not_a_greeting_is_refused_by_its_header() {
    for kind in [Kind::Call, Kind::Welcome, Kind::Ping, Kind::Attached, Kind::Died] {
        check_refused(&head(kind, 8));
    }
}

#[test]
fn bytes_that_are_not_a_frame_are_refused() {
    check_refused(&[b'G'; 64]);
}

#[test]
fn more_than_one_encrypted_frame_before_the_reply_is_refused() {
    let (worker, controller) = members();
    let server = TestListener::open(worker, LONG_LIMITS);
    let mut client = server.connect(&controller).expect("it is a member");
    send_raw(&mut client, &[head(Kind::Hello, 0), head(Kind::Call, 0)].concat());
    wait_closed(&client.stream);
    assert!(server.accepted.try_recv().is_err(), "nobody was let through");
}

#[test]
fn a_client_that_sends_only_key_updates_is_disconnected() {
    let (worker, controller) = members();
    let server = TestListener::open(worker, LONG_LIMITS);
    let mut channel = server.connect(&controller).expect("it is a member");
    let begun = Instant::now();
    loop {
        let sealer = &mut channel.secure.as_mut().expect("it is sealed").sealer;
        sealer.update_key().expect("there is a next key");
        let sent = rustix::net::send(&channel.stream, sealer.pending(), SendFlags::NOSIGNAL);
        match sent {
            Ok(len) => sealer.sent(len),
            Err(rustix::io::Errno::AGAIN) => std::thread::yield_now(),
            Err(_) => break,
        }
        assert!(begun.elapsed() < LIMIT / 2, "it is still heard");
    }
    assert!(server.serves(&controller), "others are served");
}

#[test]
fn unauthenticated_connections_do_not_evict_an_authenticated_one() {
    let (worker, controller) = members();
    let limits = ListenerLimits { pending_max: 4, ..LONG_LIMITS };
    let server = TestListener::open(worker, limits);
    let mut member = server.connect(&controller).expect("it listens");
    // Half a greeting has arrived, so the peer is authenticated once other connections are closed.
    send_raw(&mut member, &head(Kind::Hello, 0)[..32]);
    let clients: Vec<_> =
        (0..20).map(|_| TcpStream::connect(server.at).expect("it listens")).collect();
    for connection in &clients[..16] {
        wait_closed(connection);
    }
    send_raw(&mut member, &head(Kind::Hello, 0)[32..]);
    server.accepted.recv_timeout(LIMIT).expect("it is let through");
}

#[test]
fn a_request_for_a_worker_in_use_is_refused_immediately() {
    let (worker, controller) = members();
    let server = TestListener::open(worker, LONG_LIMITS);
    let mut client = server.connect(&controller).expect("it is a member");
    client.send(&bare(Kind::Attach), Instant::now() + LIMIT).expect("it is taken");
    let reply =
        client.receive_first(&[Kind::Attached], Instant::now() + LIMIT).expect("it is told");
    assert_eq!(reply.head.kind, Kind::Attached);
}

#[test]
fn an_unauthenticated_request_is_dropped_even_if_its_socket_closes_immediately() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let at = listener.local_addr().expect("it is bound");
    let (worker, controller) = members();
    let listener =
        Listener::open_with(listener.into(), worker, LONG_LIMITS).expect("there are threads");
    for _ in 0..100 {
        let mut client = TcpStream::connect(at).expect("it listens");
        // The listener may close the connection before all bytes are sent.
        let _ = client.write_all(&head(Kind::Attach, 0));
    }
    let until = Instant::now() + LIMIT;
    let mut member = Channel::connect(&[at], &controller, until).expect("it is a member");
    let mut request = bare(Kind::Attach);
    request.tail = b"of a member".as_slice().into();
    member.send(&request, until).expect("it is taken");
    let first = listener.next_request(LIMIT).expect("the member's request is there");
    assert_eq!(first.first.tail, request.tail, "none of the others was taken before");
    listener.close();
}
