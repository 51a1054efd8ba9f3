//! The TLS handshake of a connection over a network, which creates its keys.

use crate::connection::blocking_io::{SocketError, pull, push};
use crate::security::identity::{Fingerprint, client_config, server_name};
use crate::security::records::RECORDS_MAX;
use crate::span::Span;
use crate::stop::Stop;
use mesh_tls::{Handshake, Opener, Sealer};
use rustix::net::RecvFlags;
use rustls::ServerConfig;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

const NO_BYTES: Span = Span { start: 0, len: 0 };

/// The keys of both directions of an authenticated connection.
pub(crate) type Keys = (Sealer, Opener);

/// Proves the identity of this process to a client, which must then present the secret.
pub(crate) fn accept(
    fd: BorrowedFd<'_>,
    config: &Arc<ServerConfig>,
    stop: &Stop,
) -> Result<Keys, SocketError> {
    let config = Arc::clone(config);
    drive(fd, Handshake::server(move || Ok(config)), stop)
}

/// Connects only to the process that has the certificate with this fingerprint.
pub(crate) fn connect(
    fd: BorrowedFd<'_>,
    fingerprint: Fingerprint,
    stop: &Stop,
) -> Result<Keys, SocketError> {
    let config = client_config(fingerprint).map_err(mesh_tls::TlsError::from)?;
    drive(fd, Handshake::client(config, server_name())?, stop)
}

/// Exchanges bytes until the handshake is complete.
fn drive(fd: BorrowedFd<'_>, mut handshake: Handshake, stop: &Stop) -> Result<Keys, SocketError> {
    let mut bytes = [0; 4096];
    let mut fed = Ok(());
    loop {
        // After an error, these bytes are the alert that reports the reason of the refusal to the
        // peer.
        let sent = push(fd, handshake.pending(), NO_BYTES, Some(stop));
        fed?;
        sent?;
        handshake.sent(handshake.pending().len());
        if handshake.is_done() {
            return Ok(handshake.finish(RECORDS_MAX)?);
        }
        // A peer that sends single bytes does not get more time.
        stop.check().map_err(SocketError::Stopped)?;
        match pull(fd, &mut bytes, NO_BYTES, RecvFlags::empty(), Some(stop))? {
            0 => return Err(SocketError::Closed),
            received => fed = handshake.feed(&bytes[..received]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::frame::{Request, Verb};
    use crate::connection::socket::Socket;
    use crate::security::identity::Identity;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    fn soon() -> Stop {
        Stop::after(Some(Duration::from_secs(20)))
    }

    /// Two sockets that have completed a handshake with each other.
    fn pair() -> (Socket, Socket) {
        let identity = Identity::make().expect("an identity");
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let config = Arc::clone(&identity.config);
        let other = thread::spawn(move || {
            let socket = Socket::open(OwnedFd::from(theirs));
            socket.seal_with(accept(socket.as_fd(), &config, &soon()).expect("a handshake"));
            socket
        });
        let socket = Socket::open(OwnedFd::from(ours));
        let keys = connect(socket.as_fd(), identity.fingerprint, &soon());
        socket.seal_with(keys.expect("a handshake"));
        (socket, other.join().expect("the other side"))
    }

    #[test]
    fn frames_and_their_bytes_arrive_as_they_were_sent() {
        let (ours, theirs) = pair();
        for len in [0, 1, 16_384 - 48, 16_384 - 47, 1 << 20, (5 << 20) + 17] {
            let sent: Vec<u8> = (0..len).map(|at: u32| ((at * 31) >> 3) as u8).collect();
            let body = Span { start: sent.as_ptr() as usize, len: sent.len() };
            let request = Request { length: len.into(), ..Request::of(Verb::Write, 7, 9) };
            let mut found = vec![0; sent.len()];
            thread::scope(|scope| {
                scope.spawn(|| ours.send_request(&request, body, None).expect("it is sent"));
                let (heard, _) = theirs.receive_request(None).expect("it comes").expect("a frame");
                assert_eq!(heard, request);
                theirs.receive(&mut found, None).expect("its bytes come");
            });
            assert!(found == sent, "{len} bytes");
        }
        drop(ours);
        assert!(theirs.receive_request(None).expect("an end").is_none());
    }

    #[test]
    fn a_connection_continues_after_a_key_update() {
        let (ours, theirs) = pair();
        for number in 0..4 {
            for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
                from.update_key();
                let request = Request::of(Verb::Fence, 1, number);
                from.send_request(&request, NO_BYTES, None).expect("it is sent");
                let (heard, _) = to.receive_request(None).expect("it comes").expect("a frame");
                assert_eq!(heard, request);
            }
        }
    }

    #[test]
    fn a_certificate_other_than_that_of_the_handle_is_refused() {
        let identity = Identity::make().expect("an identity");
        let other = Identity::make().expect("another one");
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let config = Arc::clone(&identity.config);
        let server = thread::spawn(move || accept(theirs.as_fd(), &config, &soon()).is_err());
        let refused = connect(ours.as_fd(), other.fingerprint, &soon());
        drop(ours);
        let why = refused.err().map(|error| error.of("it").to_string()).unwrap_or_default();
        assert!(why.contains("not that of the handle"), "{why}");
        assert!(server.join().expect("the server"), "the server goes on with nobody");
    }

    #[test]
    fn a_connection_without_tls_is_refused_at_its_first_bytes() {
        let identity = Identity::make().expect("an identity");
        let (mut ours, theirs) = UnixStream::pair().expect("two sockets");
        ours.write_all(b"GET / HTTP/1.1\r\n").expect("it is sent");
        let error = accept(theirs.as_fd(), &identity.config, &soon()).err();
        assert!(matches!(error, Some(SocketError::Unproven(_))), "{error:?}");
        let mut alert = [0; 7];
        ours.read_exact(&mut alert).expect("the peer learns why");
        assert_eq!(alert, [21, 3, 3, 0, 2, 2, 10]);
    }

    #[test]
    fn a_handshake_with_an_unresponsive_peer_times_out() {
        let identity = Identity::make().expect("an identity");
        let (_ours, theirs) = UnixStream::pair().expect("two sockets");
        let socket = Socket::open(OwnedFd::from(theirs));
        socket.wait_in_ticks().expect("a time limit");
        let stop = Stop::after(Some(Duration::from_millis(30)));
        let error = accept(socket.as_fd(), &identity.config, &stop).err();
        assert!(matches!(error, Some(SocketError::Stopped(_))), "{error:?}");
    }

    #[test]
    fn bytes_modified_in_transit_are_never_written_to_memory() {
        let (ours, theirs) = pair();
        // A second pair of sockets replaces the connection, so that the record can be modified.
        let (mut middle, carried) = UnixStream::pair().expect("two sockets");
        let sent = [7_u8; 64];
        let body = Span { start: sent.as_ptr() as usize, len: sent.len() };
        ours.send_request(&Request::of(Verb::Fence, 1, 2), body, None).expect("it is sent");
        let mut record = [0; 48 + 64 + 22];
        theirs
            .as_fd()
            .try_clone_to_owned()
            .map(UnixStream::from)
            .and_then(|mut real| real.read_exact(&mut record))
            .expect("the record");
        record[60] ^= 1;
        middle.write_all(&record).expect("it is sent");
        let changed = theirs.with_descriptor(OwnedFd::from(carried));
        let mut found = [0; 48 + 64];
        let error = changed.receive(&mut found, None).err();
        assert!(matches!(error, Some(SocketError::Unproven(_))), "{error:?}");
        assert_eq!(found, [0; 48 + 64]);
    }
}
