//! The first frames of a connection, in which the client proves that it has a handle of the owner.
//!
//! | listener | the owner proves itself by | the client proves itself by |
//! | --- | --- | --- |
//! | local socket | its user (`SO_PEERCRED`) | its user, and the secret |
//! | TCP, loopback | an HMAC, see `proof` | the same |
//! | TCP, other addresses | its certificate, see `identity` | the secret, inside TLS |
//!
//! Before that, nothing else is read from a connection than a request of `REQUEST_LEN` bytes and
//! the TLS handshake.

use crate::connection::blocking_io::SocketError;
use crate::connection::frame::{Reply, Request, Status, Verb};
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::connection::socket::Socket;
use crate::domain::random;
use crate::memory::cells::Cells;
use crate::security::handshake;
use crate::security::proof::{Challenge, Exchange, Proof, Side};
use crate::server::admission::Refusal;
use crate::span::Span;
use crate::stop::Stop;
use rustls::ServerConfig;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The maximum length of the reason with which an owner refuses a connection.
const REASON_LEN_MAX: u32 = 4096;
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// How a connection is authenticated, which depends on its listener and its addresses.
#[derive(Debug)]
pub(crate) enum AuthenticationMode {
    /// Over a local socket, from a process of this user; descriptors can be attached.
    Local,
    /// Over TCP on loopback.
    Loopback {
        /// The port of the listener.
        port: u16,
    },
    /// Over TCP, except on loopback; all bytes are encrypted.
    Network(Arc<ServerConfig>),
}

/// The data of an authenticated client, and the data that it expects in return.
#[derive(Debug, Default)]
pub(crate) struct Authenticated {
    /// The cells of a client on this machine.
    pub(crate) cells: Option<Cells>,
    /// The proof that a client on loopback expects.
    pub(crate) proof: Option<Proof>,
}

/// Waits up to `limit` until a client has proved that it knows the secret of `descriptor`.
pub(crate) fn authenticate(
    socket: &Socket,
    descriptor: &PeerDescriptor,
    mode: &AuthenticationMode,
    limit: Duration,
) -> Result<Authenticated, Refusal> {
    let stop = Stop::after(Some(limit));
    // An eviction shuts down the socket, which ends the wait.
    socket.wait_at_most(limit).map_err(|_| Refusal::Silent)?;
    let authenticated = match mode {
        AuthenticationMode::Local => authenticate_local(socket, descriptor, &stop)?,
        AuthenticationMode::Loopback { port } => {
            authenticate_loopback(socket, descriptor, *port, &stop)?
        }
        AuthenticationMode::Network(config) => {
            let keys = handshake::accept(socket.as_fd(), config, &stop);
            socket.seal_with(keys.map_err(|error| match error {
                SocketError::Unproven(_) | SocketError::Strange => Refusal::NoTls,
                _ => Refusal::Silent,
            })?);
            let (hello, _) = receive_hello(socket, &stop)?;
            check_secret(socket, &hello, descriptor)?;
            Authenticated::default()
        }
    };
    socket.wait_for_ever().map_err(|_| Refusal::Silent)?;
    Ok(authenticated)
}

fn authenticate_local(
    socket: &Socket,
    descriptor: &PeerDescriptor,
    stop: &Stop,
) -> Result<Authenticated, Refusal> {
    let (hello, fds) = receive_hello(socket, stop)?;
    check_secret(socket, &hello, descriptor)?;
    let cells = fds.into_iter().next().map(Cells::open).transpose();
    Ok(Authenticated { cells: cells.map_err(|_| Refusal::NoSecret)?, proof: None })
}

fn authenticate_loopback(
    socket: &Socket,
    descriptor: &PeerDescriptor,
    port: u16,
    stop: &Stop,
) -> Result<Authenticated, Refusal> {
    let owner: Challenge = random().map_err(|_| Refusal::Silent)?;
    socket.send_bytes(&owner, stop).map_err(|_| Refusal::Silent)?;
    let (hello, _) = receive_hello(socket, stop)?;
    let exchange = Exchange { owner, client: joined(hello.operand, hello.compare), port };
    let shown = joined(hello.key, hello.offset);
    if hello.verb != Verb::Hello || !exchange.is_proved(&descriptor.secret, Side::Client, &shown) {
        return refuse(socket);
    }
    let proof = Some(exchange.proof(&descriptor.secret, Side::Owner));
    Ok(Authenticated { cells: None, proof })
}

fn receive_hello(
    socket: &Socket,
    stop: &Stop,
) -> Result<(Request, Vec<std::os::fd::OwnedFd>), Refusal> {
    match socket.receive_request(Some(stop)) {
        Ok(Some(hello)) => Ok(hello),
        Err(SocketError::Strange) => Err(Refusal::NoSecret),
        _ => Err(Refusal::Silent),
    }
}

fn check_secret(
    socket: &Socket,
    hello: &Request,
    descriptor: &PeerDescriptor,
) -> Result<(), Refusal> {
    let secret = u128::from_le_bytes(descriptor.secret);
    let shown = u128::from_le_bytes(joined(hello.key, hello.offset));
    // The comparison takes constant time: it examines all bits in any case.
    if hello.verb != Verb::Hello || shown ^ secret != 0 {
        return refuse(socket);
    }
    Ok(())
}

/// Sends the reason for the refusal, for clients with a handle of a previous process.
fn refuse<T>(socket: &Socket) -> Result<T, Refusal> {
    let reason = b"it is another process than the handle says";
    let length = u32::try_from(reason.len()).expect("a reason is short");
    let body = Span { start: reason.as_ptr() as usize, len: reason.len() };
    let _ = socket.send_reply(&Reply { status: Status::Refused, length, value: 0 }, body);
    Err(Refusal::NoSecret)
}

/// The first request over a local socket or inside TLS.
pub(crate) fn hello(descriptor: &PeerDescriptor) -> Request {
    hello_with(descriptor.secret, [0; 16])
}

fn hello_with(shown: Proof, challenge: Challenge) -> Request {
    let ((key, offset), (operand, compare)) = (split(shown), split(challenge));
    Request { offset, operand, compare, ..Request::of(Verb::Hello, 0, key) }
}

/// Proves to an owner that this process has a handle of it. Returns the reply of the owner, and the
/// reason if it refuses.
pub(crate) fn introduce(
    socket: &Socket,
    descriptor: &PeerDescriptor,
    is_loopback: bool,
    stop: &Stop,
) -> Result<(Reply, Vec<u8>), SocketError> {
    let mut exchange = None;
    let mut request = hello(descriptor);
    if is_loopback {
        let mut owner = Challenge::default();
        socket.receive(&mut owner, Some(stop))?;
        let client = random().map_err(SocketError::Stopped)?;
        let fresh = Exchange { owner, client, port: descriptor.port };
        request = hello_with(fresh.proof(&descriptor.secret, Side::Client), client);
        exchange = Some(fresh);
    }
    socket.send_request(&request, NO_BYTES, Some(stop))?;
    let reply = socket.receive_reply(Some(stop))?;
    if reply.length > REASON_LEN_MAX {
        return Err(SocketError::Strange);
    }
    let mut body = vec![0; reply.length as usize];
    socket.receive(&mut body, Some(stop))?;
    if let (Status::Done, Some(exchange)) = (reply.status, exchange) {
        let shown = Proof::try_from(body.as_slice());
        let is_owner =
            shown.is_ok_and(|shown| exchange.is_proved(&descriptor.secret, Side::Owner, &shown));
        if !is_owner {
            let why = "another process listens on its port and does not know its secret";
            return Err(SocketError::Unproven(why.to_owned()));
        }
    }
    Ok((reply, body))
}

fn split(bytes: [u8; 16]) -> (u64, u64) {
    let number = u128::from_le_bytes(bytes);
    (number as u64, (number >> 64) as u64)
}

fn joined(low: u64, high: u64) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    const PORT: u16 = 4321;
    const LIMIT: Duration = Duration::from_secs(20);

    fn descriptor(secret: u8) -> PeerDescriptor {
        PeerDescriptor {
            token: [1; 16],
            secret: [secret; 16],
            boot: [3; 16],
            fingerprint: [0; 32],
            port: PORT,
            addresses: Vec::new(),
            name: "the owner".to_owned(),
        }
    }

    fn sockets() -> (Socket, Socket) {
        let (one, other) = UnixStream::pair().expect("two sockets");
        (Socket::open(OwnedFd::from(one)), Socket::open(OwnedFd::from(other)))
    }

    type Answer = Result<(Reply, Vec<u8>), SocketError>;

    /// Authenticates on loopback; returns the results of the owner and of the client.
    fn meet(
        owner: &PeerDescriptor,
        client: &PeerDescriptor,
        port: u16,
    ) -> (Result<Authenticated, Refusal>, Answer) {
        let (ours, theirs) = sockets();
        thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let found =
                    authenticate(&theirs, owner, &AuthenticationMode::Loopback { port }, LIMIT);
                if let Ok(Authenticated { proof: Some(proof), .. }) = &found {
                    let reply = Reply { length: 16, ..Reply::of(Status::Done, 1) };
                    let body = Span { start: proof.as_ptr() as usize, len: proof.len() };
                    theirs.send_reply(&reply, body).expect("it is sent");
                }
                found
            });
            let stop = Stop::after(Some(LIMIT));
            let answer = introduce(&ours, client, true, &stop);
            drop(ours);
            (serving.join().expect("it ends"), answer)
        })
    }

    #[test]
    fn both_sides_on_loopback_prove_that_they_know_the_secret() {
        let (found, answer) = meet(&descriptor(7), &descriptor(7), PORT);
        assert!(found.is_ok());
        assert!(answer.is_ok());
    }

    #[test]
    fn a_client_on_loopback_that_does_not_know_the_secret_is_refused() {
        let (found, answer) = meet(&descriptor(7), &descriptor(8), PORT);
        assert_eq!(found.err(), Some(Refusal::NoSecret));
        let (reply, reason) = answer.expect("it is told why");
        assert_eq!(reply.status, Status::Refused);
        assert!(reason.starts_with(b"it is another process"));
    }

    #[test]
    fn a_proof_that_was_made_for_another_port_is_refused() {
        let (found, _) = meet(&descriptor(7), &descriptor(7), PORT + 1);
        assert_eq!(found.err(), Some(Refusal::NoSecret));
    }

    #[test]
    fn an_owner_on_loopback_that_does_not_know_the_secret_is_refused() {
        let (ours, theirs) = sockets();
        let stop = || Stop::after(Some(LIMIT));
        thread::scope(|scope| {
            scope.spawn(|| {
                theirs.send_bytes(&[5; 16], &stop()).expect("it is sent");
                let (hello, _) = receive_hello(&theirs, &stop()).expect("it comes");
                assert_ne!(
                    joined(hello.key, hello.offset),
                    descriptor(7).secret,
                    "it is never sent"
                );
                let guess = [9_u8; 16];
                let body = Span { start: guess.as_ptr() as usize, len: guess.len() };
                let reply = Reply { length: 16, ..Reply::of(Status::Done, 1) };
                theirs.send_reply(&reply, body).expect("it is sent");
            });
            let error = introduce(&ours, &descriptor(7), true, &stop()).err();
            assert!(matches!(error, Some(SocketError::Unproven(_))), "{error:?}");
        });
    }

    #[test]
    fn an_unresponsive_client_is_refused_after_the_time_limit() {
        let (_ours, theirs) = sockets();
        let limit = Duration::from_millis(30);
        let found = authenticate(&theirs, &descriptor(7), &AuthenticationMode::Local, limit);
        assert_eq!(found.err(), Some(Refusal::Silent));
    }
}
