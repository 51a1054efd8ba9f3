//! Entry points for the fuzz targets, which pass bytes of a peer to private functions.

use crate::client::peer_monitor::PeerMonitor;
use crate::connection::blocking_io::SocketError;
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::connection::socket::Socket;
use crate::domain::registry::Memory;
use crate::domain::{Domain, random};
use crate::security::authentication::{Authenticated, AuthenticationMode, authenticate, introduce};
use crate::security::handshake;
use crate::security::identity::{Identity, client_config, server_name};
use crate::security::records::{RECORDS_MAX, pull, push};
use crate::server::admission::Refusal;
use crate::server::connection_handler::answer_all;
use crate::span::Span;
use crate::stop::Stop;
use mesh_tls::{Handshake, Opener, Sealer};
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

/// A limit that is never reached, because the peer has closed its side.
const LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of bytes of replies that a peer reads before it closes the connection.
const REPLIES_LEN_MAX: u64 = 1 << 20;
const GUARD_LEN: usize = 64;
const MEMORY_LEN: usize = 256;
const GUARD: u8 = 0xA5;
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// Differs in each run: a fuzzer guesses a constant, such as the same byte sixteen times.
static SECRET: LazyLock<[u8; 16]> = LazyLock::new(|| random().expect("random bytes"));

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| Identity::make().expect("an identity"));

/// The descriptor of the owner of all connections in this module.
fn descriptor() -> PeerDescriptor {
    PeerDescriptor {
        token: [1; 16],
        secret: *SECRET,
        boot: [3; 16],
        fingerprint: IDENTITY.fingerprint,
        port: 4321,
        addresses: Vec::new(),
        name: "the owner".to_owned(),
    }
}

/// A socket whose peer has sent these bytes and closed its side.
fn after(bytes: &[u8]) -> (UnixStream, Socket) {
    let (mut peer, ours) = UnixStream::pair().expect("two sockets");
    peer.write_all(bytes).expect("the socket has space for an input");
    peer.shutdown(Shutdown::Write).expect("it is open");
    (peer, Socket::open(OwnedFd::from(ours)))
}

fn soon() -> Stop {
    Stop::after(Some(LIMIT))
}

/// A client over TCP that does not connect from loopback.
pub fn accept_tls(bytes: &[u8]) -> bool {
    let (_peer, socket) = after(bytes);
    handshake::accept(socket.as_fd(), &IDENTITY.config, &soon()).is_ok()
}

/// An owner over TCP that is not on loopback.
pub fn connect_tls(bytes: &[u8]) -> bool {
    let (_peer, socket) = after(bytes);
    handshake::connect(socket.as_fd(), IDENTITY.fingerprint, &soon()).is_ok()
}

/// A client over the local socket.
pub fn authenticate_local(bytes: &[u8]) -> bool {
    is_authenticated(bytes, &AuthenticationMode::Local)
}

/// A client over TCP on loopback.
pub fn authenticate_loopback(bytes: &[u8]) -> bool {
    is_authenticated(bytes, &AuthenticationMode::Loopback { port: 4321 })
}

fn is_authenticated(bytes: &[u8], mode: &AuthenticationMode) -> bool {
    let (_peer, socket) = after(bytes);
    let found: Result<Authenticated, Refusal> = authenticate(&socket, &descriptor(), mode, LIMIT);
    found.is_ok()
}

/// An owner over TCP on loopback. Returns whether it has proved its identity.
pub fn introduce_loopback(bytes: &[u8]) -> bool {
    let (_peer, socket) = after(bytes);
    let answer = introduce(&socket, &descriptor(), true, &soon());
    answer.is_ok_and(|(reply, _)| reply.status == crate::connection::frame::Status::Done)
}

/// An owner with one registration, and an authenticated client.
pub struct Served {
    domain: Arc<Domain>,
    /// The slot of the registration.
    pub slot: u32,
    /// The key of the registration.
    pub key: u64,
    memory: Box<[u8; GUARD_LEN + MEMORY_LEN + GUARD_LEN]>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Served").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Served {
    /// Registers a small range of memory.
    pub fn new() -> Self {
        let peer_monitor = PeerMonitor::new().expect("descriptors");
        let domain = Arc::new(Domain::new(descriptor(), peer_monitor).expect("memory"));
        let mut memory = Box::new([GUARD; GUARD_LEN + MEMORY_LEN + GUARD_LEN]);
        let start = memory[GUARD_LEN..].as_mut_ptr() as usize;
        let span = Span { start, len: MEMORY_LEN };
        let offered = Memory { span, is_writable: true, device: None };
        let (slot, key) = domain.register(offered, Box::new(())).expect("there is space");
        Self { domain, slot, key, memory }
    }

    /// Handles these requests until the end of the stream. Returns the replies.
    pub fn serve(&self, requests: &[u8]) -> Vec<u8> {
        let (peer, socket) = after(requests);
        let replies = thread::spawn(move || {
            let mut replies = Vec::new();
            let _ = (&peer).take(REPLIES_LEN_MAX).read_to_end(&mut replies);
            replies
        });
        answer_all(&self.domain, socket);
        replies.join().expect("it reads")
    }

    /// Whether the bytes around the registration are unchanged.
    pub fn is_around_unchanged(&self) -> bool {
        let (before, rest) = self.memory.split_at(GUARD_LEN);
        let behind = &rest[MEMORY_LEN..];
        before.iter().chain(behind).all(|byte| *byte == GUARD)
    }
}

impl Default for Served {
    fn default() -> Self {
        Self::new()
    }
}

/// One direction of an encrypted connection, with both of its ends.
#[derive(Debug)]
pub struct Sealed {
    sealer: Sealer,
    opener: Opener,
    peer: UnixStream,
    socket: OwnedFd,
}

impl Sealed {
    /// A connection after its handshake.
    pub fn new() -> Self {
        let mut server = Handshake::server(|| Ok(Arc::clone(&IDENTITY.config)));
        let config = client_config(IDENTITY.fingerprint).expect("a configuration");
        let mut client = Handshake::client(config, server_name()).expect("randomness");
        while !(server.is_done() && client.is_done()) {
            carry(&mut client, &mut server);
            carry(&mut server, &mut client);
        }
        let (sealer, _) = client.finish(RECORDS_MAX).expect("it is done");
        let (_, opener) = server.finish(RECORDS_MAX).expect("it is done");
        let (peer, socket) = UnixStream::pair().expect("two sockets");
        peer.set_nonblocking(true).expect("it is open");
        Self { sealer, opener, peer, socket: OwnedFd::from(socket) }
    }

    /// Encrypts bytes; returns the bytes on the wire.
    pub fn seal(&mut self, head: &[u8], body: &[u8]) -> Vec<u8> {
        let body = Span { start: body.as_ptr() as usize, len: body.len() };
        let (mut wire, end) = UnixStream::pair().expect("two sockets");
        push(&mut self.sealer, end.as_fd(), head, body, None).expect("the socket has space");
        drop(end);
        let mut sealed = Vec::new();
        wire.read_to_end(&mut sealed).expect("it comes");
        sealed
    }

    /// Decrypts the complete records in bytes from the wire; `None` if they are not authentic.
    pub fn open(&mut self, wire: &[u8]) -> Option<Vec<u8>> {
        self.peer.write_all(wire).expect("the socket has space");
        let mut opened = Vec::new();
        let mut buffer = [0; 1000];
        loop {
            let flags = RecvFlags::DONTWAIT;
            match pull(&mut self.opener, self.socket.as_fd(), &mut buffer, NO_BYTES, flags, None) {
                Ok(0) | Err(SocketError::Nothing) => return Some(opened),
                Ok(len) => opened.extend_from_slice(&buffer[..len]),
                Err(_) => return None,
            }
        }
    }
}

fn carry(from: &mut Handshake, to: &mut Handshake) {
    to.feed(from.pending()).expect("nothing was changed");
    from.sent(from.pending().len());
}

impl Default for Sealed {
    fn default() -> Self {
        Self::new()
    }
}
