//! The TLS handshake of a connection over a network, which creates its keys.

use crate::connection::blocking_io::{SocketError, pull, push};
use crate::security::identity::{Fingerprint, client_config, server_name};
use crate::security::records::{HEAD_LEN, Opener, Sealer, records};
use crate::span::Span;
use crate::stop::Stop;
use rustix::net::RecvFlags;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CertificateError, Error, ServerConfig};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The maximum length of a handshake record; records of this protocol have less than 1000 bytes.
const RECORD_LEN_MAX: usize = 4 << 10;
/// The maximum number of records per handshake; this protocol needs four or five in each direction.
const RECORDS_MAX: usize = 16;
/// The type of a handshake record, which is the first byte of a connection.
const HANDSHAKE: u8 = 22;
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// The keys of both directions of an authenticated connection.
pub(crate) type Keys = (Sealer, Opener);

/// Proves the identity of this process to a client, which must then present the secret.
pub(crate) fn accept(
    fd: BorrowedFd<'_>,
    config: &Arc<ServerConfig>,
    stop: &Stop,
) -> Result<Keys, SocketError> {
    let connection = UnbufferedServerConnection::new(Arc::clone(config));
    let mut connection = connection.map_err(in_words)?;
    drive(fd, stop, |bytes, out| step(connection.process_tls_records(bytes), out))?;
    let secrets = connection.dangerous_into_kernel_connection().map_err(in_words)?.0;
    records(secrets)
}

/// Connects only to the process that has the certificate with this fingerprint.
pub(crate) fn connect(
    fd: BorrowedFd<'_>,
    fingerprint: Fingerprint,
    stop: &Stop,
) -> Result<Keys, SocketError> {
    let config = client_config(fingerprint).map_err(in_words)?;
    let connection = UnbufferedClientConnection::new(config, server_name());
    let mut connection = connection.map_err(in_words)?;
    drive(fd, stop, |bytes, out| step(connection.process_tls_records(bytes), out))?;
    let secrets = connection.dangerous_into_kernel_connection().map_err(in_words)?.0;
    records(secrets)
}

/// The next step that rustls requires.
enum Next {
    /// Continue with the same bytes.
    Again,
    /// Receive another record.
    More,
    /// None: the keys are created.
    Done,
}

/// Exchanges records until rustls has finished. Records are received one at a time, so that no byte
/// after the last one is consumed.
fn drive(
    fd: BorrowedFd<'_>,
    stop: &Stop,
    mut step: impl FnMut(&mut [u8], &mut Vec<u8>) -> (usize, Result<Next, Error>),
) -> Result<(), SocketError> {
    let (mut inbound, mut outbound) = (Vec::new(), Vec::new());
    for _ in 0..RECORDS_MAX {
        let next = loop {
            let (used, next) = step(&mut inbound, &mut outbound);
            inbound.drain(..used);
            match next {
                Ok(Next::Again) => {}
                other => break other,
            }
        };
        let next = next.map_err(in_words)?;
        push(fd, &outbound, NO_BYTES, Some(stop))?;
        outbound.clear();
        if let Next::Done = next {
            return Ok(());
        }
        receive_record(fd, &mut inbound, stop)?;
    }
    Err(SocketError::Strange)
}

fn receive_record(
    fd: BorrowedFd<'_>,
    inbound: &mut Vec<u8>,
    stop: &Stop,
) -> Result<(), SocketError> {
    let start = inbound.len();
    inbound.resize(start + HEAD_LEN, 0);
    receive(fd, &mut inbound[start..], stop)?;
    let head = &inbound[start..];
    let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
    // The valid record types are 20 to 23.
    if !(HANDSHAKE - 2..=HANDSHAKE + 1).contains(&head[0]) || head[1] != 3 || len > RECORD_LEN_MAX {
        return Err(SocketError::Unproven("it speaks no TLS".to_owned()));
    }
    inbound.resize(start + HEAD_LEN + len, 0);
    receive(fd, &mut inbound[start + HEAD_LEN..], stop)
}

fn receive(fd: BorrowedFd<'_>, mut room: &mut [u8], stop: &Stop) -> Result<(), SocketError> {
    while !room.is_empty() {
        // A peer that sends single bytes does not get more time.
        stop.check().map_err(SocketError::Stopped)?;
        match pull(fd, room, NO_BYTES, RecvFlags::empty(), Some(stop))? {
            0 => return Err(SocketError::Closed),
            received => room = &mut room[received..],
        }
    }
    Ok(())
}

/// Processes the result of one rustls call.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outbound: &mut Vec<u8>,
) -> (usize, Result<Next, Error>) {
    let next = status.state.map(|state| match state {
        ConnectionState::EncodeTlsData(mut encode) => {
            let start = outbound.len();
            if let Err(EncodeError::InsufficientSize(error)) = encode.encode(&mut []) {
                outbound.resize(start + error.required_size, 0);
                encode.encode(&mut outbound[start..]).expect("it has the size that was asked for");
            }
            Next::Again
        }
        ConnectionState::TransmitTlsData(sent) => {
            sent.done();
            Next::Again
        }
        ConnectionState::WriteTraffic(_) => Next::Done,
        _ => Next::More,
    });
    (status.discard, next)
}

/// Translates an error of rustls for the user of a buffer.
fn in_words(error: Error) -> SocketError {
    let other = CertificateError::ApplicationVerificationFailure;
    SocketError::Unproven(match error {
        Error::InvalidCertificate(why) if why == other => {
            "another process answers there: its certificate is not that of the handle".to_owned()
        }
        other => other.to_string(),
    })
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
    fn another_certificate_than_that_of_the_handle_is_refused_by_name() {
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
    fn what_is_no_tls_is_refused_at_its_first_bytes() {
        let identity = Identity::make().expect("an identity");
        let (mut ours, theirs) = UnixStream::pair().expect("two sockets");
        ours.write_all(b"GET / HTTP/1.1\r\n").expect("it is sent");
        let error = accept(theirs.as_fd(), &identity.config, &soon()).err();
        assert!(matches!(error, Some(SocketError::Unproven(_))), "{error:?}");
    }

    #[test]
    fn who_says_nothing_is_waited_for_as_long_as_the_limit() {
        let identity = Identity::make().expect("an identity");
        let (_ours, theirs) = UnixStream::pair().expect("two sockets");
        let socket = Socket::open(OwnedFd::from(theirs));
        socket.wait_in_ticks().expect("a time limit");
        let stop = Stop::after(Some(Duration::from_millis(30)));
        let error = accept(socket.as_fd(), &identity.config, &stop).err();
        assert!(matches!(error, Some(SocketError::Stopped(_))), "{error:?}");
    }

    #[test]
    fn a_byte_that_is_changed_on_the_way_never_gets_to_the_memory() {
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
