//! The handler of a connection: one thread per connection, which serves its requests.
#![expect(unsafe_code, reason = "works on memory that is offered by address")]

use crate::connection::blocking_io::SocketError;
use crate::connection::frame::{Reply, Request, Status, Verb};
use crate::connection::socket::Socket;
use crate::copy::gather::pack;
use crate::copy::grid::{DIMS_MAX, Grid};
use crate::domain::Domain;
use crate::domain::registry::Holder;
use crate::error::DataError;
use crate::security::authentication::{Authenticated, AuthenticationMode, authenticate};
use crate::security::proof::Proof;
use crate::server::admission::{Permit, Refusal};
use crate::server::listener::Listener;
use crate::server::peer::Peer;
use crate::span::Span;
use crate::stop::Stop;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The number of bytes between two checks whether the registration is still valid.
pub(crate) const CHUNK_LEN: usize = 1 << 20;
/// The maximum length of a request to a transport.
pub(crate) const EXCHANGE_LEN_MAX: usize = 1 << 20;
/// The maximum length of an encoded grid.
const GRID_LEN_MAX: usize = 8 * (1 + 2 * DIMS_MAX);
/// The stack size of a thread, which must suffice for the handlers of transports.
const STACK_LEN: usize = 512 << 10;
/// How long a fenced stream may take to end after it was shut down.
const FENCE_LIMIT: Duration = Duration::from_secs(10);

const NO_BYTES: Span = Span { start: 0, len: 0 };

/// Starts the listener for processes of this machine.
pub(crate) fn listen_local(domain: &Arc<Domain>) -> io::Result<()> {
    let name = domain.descriptor().socket_name();
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    Listener::Local(OwnedFd::from(listener)).start(domain)
}

/// Runs a function in a new thread.
pub(crate) fn in_thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).stack_size(STACK_LEN).spawn(run).map(|_| ())
}

/// Authenticates a new connection and serves it, in a new thread.
pub(crate) fn start(
    domain: &Arc<Domain>,
    socket: Arc<Socket>,
    mut permit: Permit,
    mode: AuthenticationMode,
) {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let is_local = matches!(mode, AuthenticationMode::Local);
    let handler = ConnectionHandler { domain: Arc::clone(domain), socket, number, is_local };
    let serve = move || {
        let limit = handler.domain.limiter.policy().authentication_limit;
        let found = authenticate(&handler.socket, handler.domain.descriptor(), &mode, limit);
        // In every case, the connection is closed afterwards.
        match found {
            Ok(authenticated) if permit.authenticate() => {
                let _ = handler.serve(authenticated);
            }
            Err(why) if !permit.is_evicted() => handler.domain.refusals.count(why),
            _ => handler.domain.refusals.count(Refusal::Evicted),
        }
        // The descriptor is closed before another connection can be admitted.
        drop(handler);
        drop(permit);
    };
    // If no thread can be started the socket is dropped, which closes the connection.
    let _ = in_thread("mesh-rdma-handler", serve);
}

/// Serves an authenticated client until the end of its connection, in this thread.
#[cfg(feature = "fuzzing")]
pub(crate) fn answer_all(domain: &Arc<Domain>, socket: Socket) {
    let socket = Arc::new(socket);
    let handler =
        ConnectionHandler { domain: Arc::clone(domain), socket, number: 1, is_local: false };
    let _ = handler.serve(Authenticated::default());
}

/// Serves the requests of one connection.
struct ConnectionHandler {
    domain: Arc<Domain>,
    socket: Arc<Socket>,
    number: Holder,
    is_local: bool,
}

impl Drop for ConnectionHandler {
    fn drop(&mut self) {
        self.domain.remove_peer(self.number);
        self.socket.shut();
    }
}

impl ConnectionHandler {
    fn serve(&self, client: Authenticated) -> Result<(), SocketError> {
        let Authenticated { cells, proof } = client;
        let peer = Arc::new(Peer::new(self.number, Arc::clone(&self.socket), cells));
        self.domain.add_peer(Arc::clone(&peer));
        self.send_hello_reply(proof)?;
        while let Some((request, _)) = self.socket.receive_request(None)? {
            self.answer(&request, &peer)?;
        }
        Ok(())
    }

    /// Sends the peer its number: on loopback with the expected proof, and over a local socket with
    /// the ledger, which the peer needs for direct copies.
    fn send_hello_reply(&self, proof: Option<Proof>) -> Result<(), SocketError> {
        let ledger = self.domain.ledger().map();
        let mut reply = Reply::of(Status::Done, self.number);
        if !self.is_local {
            let proof = proof.as_ref().map_or(&[][..], |proof| proof);
            reply.length = u32::try_from(proof.len()).expect("a proof is short");
            let body = Span { start: proof.as_ptr() as usize, len: proof.len() };
            return self.socket.send_reply(&reply, body);
        }
        // An address whose content the peer knows: by reading it, the peer determines whether it
        // can attach memory of this process.
        let known = (ledger.span().start as u64).to_le_bytes();
        reply.length = 8;
        let bytes = [&reply.encode()[..], &known].concat();
        self.socket.send_with(&bytes, &[ledger.as_fd()])
    }

    fn answer(&self, request: &Request, peer: &Peer) -> Result<(), SocketError> {
        let Request { slot, key, .. } = *request;
        match request.verb {
            Verb::Hello => self.refuse("it has said hello before"),
            Verb::Segment => self.send_segment(slot),
            Verb::Lease => {
                let is_valid = self.domain.lease_for(slot, key, self.number);
                self.reply(if is_valid { Status::Done } else { Status::Released }, 0)
            }
            Verb::EndLease => {
                self.domain.end_lease_for(slot, key, self.number);
                self.reply(Status::Done, 0)
            }
            Verb::Drop => {
                let stop = Stop::after(Some(Duration::from_micros(request.operand)));
                self.reply_to(self.domain.release(slot, key, &stop).map(|()| 0))
            }
            Verb::Read => self.read(request, peer),
            Verb::Write => self.write(request, peer),
            Verb::FetchAdd | Verb::CompareAndSwap => {
                let serving = peer.serving(slot);
                let result = self.change(request);
                drop(serving);
                self.reply_to(result)
            }
            Verb::Exchange => self.exchange(request),
            Verb::Gather => self.gather(request, peer),
            // A connection cannot wait for its end.
            Verb::Fence if key == self.number => self.refuse("it is this connection"),
            Verb::Fence => {
                let fenced = self.fence(key);
                self.reply(if fenced { Status::Done } else { Status::Deadline }, 0)
            }
        }
    }

    fn send_segment(&self, number: u32) -> Result<(), SocketError> {
        let Some(map) = self.domain.arena().segment(number).filter(|_| self.is_local) else {
            return self.refuse("there is no such segment");
        };
        let reply = Reply::of(Status::Done, map.span().len as u64);
        let fds: &[BorrowedFd<'_>] = &[map.as_fd()];
        self.socket.send_with(&reply.encode(), fds)
    }

    /// Sends a range in chunks; each chunk contains a status.
    fn read(&self, request: &Request, peer: &Peer) -> Result<(), SocketError> {
        let Request { slot, key, offset, length, .. } = *request;
        let _serving = peer.serving(slot);
        let range = match self.domain.range(slot, key, offset, length, false) {
            Ok(range) => range,
            Err(error) => return self.reply_to(Err(error)),
        };
        let mut sent = 0;
        loop {
            if !self.domain.ledger().is_valid(slot, key) {
                return self.reply(Status::Released, 0);
            }
            let len = CHUNK_LEN.min(range.len - sent);
            let chunk = range.part(sent, len).expect("inside of the range");
            let length = u32::try_from(len).expect("a chunk is short");
            self.socket.send_reply(&Reply { status: Status::Done, length, value: 0 }, chunk)?;
            sent += len;
            if sent == range.len {
                return Ok(());
            }
        }
    }

    /// Sends packed rows in chunks, like [`ConnectionHandler::read`].
    fn gather(&self, request: &Request, peer: &Peer) -> Result<(), SocketError> {
        let Request { slot, key, offset, operand: start, compare: len, .. } = *request;
        let body_len = usize::try_from(request.length).unwrap_or(usize::MAX);
        if body_len > GRID_LEN_MAX {
            return Err(SocketError::Strange);
        }
        let mut body = vec![0; body_len];
        self.socket.receive(&mut body, None)?;
        let grid = Grid::decode(&body).ok_or(SocketError::Strange)?;
        let span_len = grid.from_len().ok_or(SocketError::Strange)?;
        if start.checked_add(len).is_none_or(|end| end > grid.len()) {
            return Err(SocketError::Strange);
        }
        let _serving = peer.serving(slot);
        let range = match self.domain.range(slot, key, offset, span_len, false) {
            Ok(range) => range,
            Err(error) => return self.reply_to(Err(error)),
        };
        let mut buffer = vec![0; CHUNK_LEN.min(usize::try_from(len).unwrap_or(CHUNK_LEN))];
        let mut sent = 0;
        while sent < len {
            if !self.domain.ledger().is_valid(slot, key) {
                return self.reply(Status::Released, 0);
            }
            let now = buffer.len().min(usize::try_from(len - sent).unwrap_or(CHUNK_LEN));
            // SAFETY: the registration keeps the range mapped while `serving` announces its slot.
            unsafe { pack(&grid, start + sent, range, &mut buffer[..now]) };
            let length = u32::try_from(now).expect("a chunk is short");
            let chunk = Span { start: buffer.as_ptr() as usize, len: now };
            self.socket.send_reply(&Reply { status: Status::Done, length, value: 0 }, chunk)?;
            sent += now as u64;
        }
        Ok(())
    }

    /// Receives a range directly to its destination. If it cannot be written, it is received and
    /// discarded, so that the next frame can be read.
    fn write(&self, request: &Request, peer: &Peer) -> Result<(), SocketError> {
        let Request { slot, key, offset, length, operand, .. } = *request;
        // The writer gives up at this time, even if it cannot notify this process.
        let limit = (operand > 0).then(|| Duration::from_micros(operand));
        let stop = Stop::after(limit);
        let mut serving = Some(peer.serving(slot));
        let mut result = self.domain.range(slot, key, offset, length, true);
        let mut left = length;
        let mut sink = Vec::new();
        while left > 0 {
            let len = CHUNK_LEN.min(usize::try_from(left).unwrap_or(usize::MAX));
            if result.is_ok() && !self.domain.ledger().is_valid(slot, key) {
                result = Err(DataError::Released);
            }
            let done = usize::try_from(length - left).unwrap_or(usize::MAX);
            match &result {
                Ok(range) => {
                    // The registration keeps the range mapped while `serving` announces its slot.
                    let chunk = range.part(done, len).expect("inside of the range");
                    self.socket.land(chunk, &stop)?;
                }
                Err(_) => {
                    // Nothing is written anymore, so a release need not wait for this.
                    serving = None;
                    sink.resize(len, 0);
                    self.socket.receive(&mut sink, None)?;
                }
            }
            left -= len as u64;
        }
        // The announcement ends before the other side receives the reply.
        drop(serving);
        self.reply_to(result.map(|_| 0))
    }

    /// Atomically changes a word.
    fn change(&self, request: &Request) -> Result<u64, DataError> {
        let Request { verb, slot, key, offset, operand, compare, .. } = *request;
        let word = word_of(self.domain.range(slot, key, offset, 8, true)?, offset)?;
        // SAFETY: alignment is checked; the registration keeps it mapped while its slot is
        // announced.
        let word = unsafe { AtomicU64::from_ptr(word) };
        Ok(change(word, verb, operand, compare))
    }

    fn exchange(&self, request: &Request) -> Result<(), SocketError> {
        let len = usize::try_from(request.length).unwrap_or(usize::MAX);
        if len > EXCHANGE_LEN_MAX || request.slot as usize > len {
            return Err(SocketError::Strange);
        }
        let mut bytes = vec![0; len];
        self.socket.receive(&mut bytes, None)?;
        let (name, question) = bytes.split_at(request.slot as usize);
        let name = String::from_utf8_lossy(name);
        let answer = match self.domain.request_handler() {
            Some(request_handler) => request_handler(&name, question),
            None => Err("it has only the built-in transports".to_owned()),
        };
        let (status, bytes) = match answer {
            Ok(bytes) if bytes.len() <= EXCHANGE_LEN_MAX => (Status::Done, bytes),
            Ok(_) => (Status::Refused, b"the answer is longer than a mebibyte".to_vec()),
            Err(why) => (Status::Refused, why.into_bytes()),
        };
        self.send_bytes(status, &bytes)
    }

    /// Closes another connection of the same peer; returns whether its handler has ended.
    fn fence(&self, number: Holder) -> bool {
        let stop = Stop::after(Some(FENCE_LIMIT));
        while let Some(peer) = self.domain.peer(number) {
            peer.socket.shut();
            if stop.check().is_err() {
                return false;
            }
            thread::sleep(Duration::from_micros(50));
        }
        true
    }

    fn refuse(&self, why: &str) -> Result<(), SocketError> {
        self.send_bytes(Status::Refused, why.as_bytes())
    }

    fn send_bytes(&self, status: Status, bytes: &[u8]) -> Result<(), SocketError> {
        let length = u32::try_from(bytes.len()).map_err(|_| SocketError::Strange)?;
        let body = Span { start: bytes.as_ptr() as usize, len: bytes.len() };
        self.socket.send_reply(&Reply { status, length, value: 0 }, body)
    }

    fn reply(&self, status: Status, value: u64) -> Result<(), SocketError> {
        self.socket.send_reply(&Reply::of(status, value), NO_BYTES)
    }

    fn reply_to(&self, result: Result<u64, DataError>) -> Result<(), SocketError> {
        match result {
            Ok(value) => self.reply(Status::Done, value),
            // Such a request for device memory requires a forged handle.
            Err(DataError::Released | DataError::OnDevice) => self.reply(Status::Released, 0),
            Err(DataError::OutOfBounds { len, .. }) => self.reply(Status::OutOfBounds, len),
            Err(DataError::ReadOnly) => self.reply(Status::ReadOnly, 0),
            Err(DataError::Deadline) => self.reply(Status::Deadline, 0),
            Err(DataError::Misaligned { .. }) => self.reply(Status::Misaligned, 0),
            Err(error) => self.refuse(&error.to_string()),
        }
    }
}

/// The address of the word in a range.
pub(crate) fn word_of(range: Span, offset: u64) -> Result<*mut u64, DataError> {
    let word = range.start as *mut u64;
    if word.is_aligned() { Ok(word) } else { Err(DataError::Misaligned { offset }) }
}

/// Atomically changes a word; returns its previous value.
pub(crate) fn change(word: &AtomicU64, verb: Verb, operand: u64, compare: u64) -> u64 {
    if verb == Verb::FetchAdd {
        return word.fetch_add(operand, Ordering::SeqCst);
    }
    let swapped = word.compare_exchange(compare, operand, Ordering::SeqCst, Ordering::SeqCst);
    swapped.unwrap_or_else(|found| found)
}
