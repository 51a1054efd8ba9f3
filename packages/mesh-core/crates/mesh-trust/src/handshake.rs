//! The handshake of a connection, until both sides are authenticated.

use crate::alert;
use crate::claim::Peer;
use crate::error::TrustError;
use crate::record::{RECORD_HEAD_LEN, Schedule, SecureStream};
use crate::trust::{Trust, peer_of, server_name};
use crate::verify::Verifier;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{CommonState, Error};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of bytes that a peer may send before it is authenticated.
///
/// A client of this crate sends about two thousand. This is also the maximum memory for these
/// bytes.
pub const HANDSHAKE_LEN_MAX: usize = 8 << 10;

/// The time limit that the caller should set for a handshake; see [`Handshake::too_slow`].
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// The first byte of a record that carries a handshake message.
const HANDSHAKE_TYPE: u8 = 22;

/// One side of a handshake, independent of sockets.
///
/// Pass the bytes from the socket to [`Handshake::feed`]. Then write [`Handshake::pending`] to the
/// socket, even after an error, so that the peer learns why it is refused. When
/// [`Handshake::is_done`] returns true, [`Handshake::finish`] converts the handshake to a
/// connection.
///
/// The caller enforces deadlines and limits: it drops a handshake that is not done after
/// [`HANDSHAKE_TIME_MAX`], no matter how many bytes have arrived, and bounds the number of
/// concurrent handshakes.
pub struct Handshake {
    state: State,
    /// Bytes of the peer that have not been consumed yet.
    inbound: Vec<u8>,
    /// The number of these bytes that were passed to rustls.
    shown: usize,
    received_len: usize,
    outbound: Vec<u8>,
    sent_len: usize,
}

/// The state of the handshake. A server is created when the peer has sent a complete record that
/// looks like TLS.
enum State {
    Waiting(Trust),
    Server(Box<UnbufferedServerConnection>, Arc<Verifier>),
    Client(Box<UnbufferedClientConnection>, Arc<Verifier>),
    /// Both sides are authenticated; contains the identity of the peer.
    Done(Connection, Peer),
    Failed(TrustError),
}

enum Connection {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl Handshake {
    pub(crate) fn server(trust: Trust) -> Self {
        Self::new(State::Waiting(trust))
    }

    pub(crate) fn client(trust: &Trust) -> Result<Self, TrustError> {
        let verifier = trust.verifier();
        let config = trust.client_config_with(Arc::clone(&verifier))?;
        let connection = UnbufferedClientConnection::new(Arc::new(config), server_name())
            .map_err(TrustError::crypto)?;
        let mut handshake = Self::new(State::Client(Box::new(connection), verifier));
        handshake.advance()?;
        Ok(handshake)
    }

    fn new(state: State) -> Self {
        let (inbound, outbound) = Default::default();
        Self { state, inbound, shown: 0, received_len: 0, outbound, sent_len: 0 }
    }

    /// Consumes all of these bytes from the peer.
    ///
    /// Bytes after the handshake are the first of the connection and are kept for it. Call
    /// [`Handshake::finish`] before reading more.
    ///
    /// # Errors
    /// The reason why the peer is refused, or why it refuses us. Close the connection after sending
    /// [`Handshake::pending`].
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TrustError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        while !bytes.is_empty() && !self.is_done() {
            if self.received_len == HANDSHAKE_LEN_MAX {
                return Err(self.fail(TrustError::TooLong { limit: HANDSHAKE_LEN_MAX }));
            }
            if self.inbound.capacity() == 0 {
                self.inbound.reserve_exact(HANDSHAKE_LEN_MAX);
            }
            let room = HANDSHAKE_LEN_MAX - self.received_len;
            let (taken, rest) = bytes.split_at(bytes.len().min(room));
            self.inbound.extend_from_slice(taken);
            self.received_len += taken.len();
            bytes = rest;
            self.advance()?;
        }
        // The peer is authenticated: the caller's reads limit what it can send now.
        self.inbound.extend_from_slice(bytes);
        Ok(())
    }

    /// The bytes to send to the peer.
    pub fn pending(&self) -> &[u8] {
        &self.outbound[self.sent_len..]
    }

    /// Reports that `len` bytes of [`Handshake::pending`] were sent.
    ///
    /// # Panics
    /// If [`Handshake::pending`] has fewer bytes.
    pub fn sent(&mut self, len: usize) {
        assert!(len <= self.pending().len(), "sent {len} bytes of fewer");
        self.sent_len += len;
    }

    /// Whether both sides are authenticated, as far as this side knows.
    ///
    /// A client knows that its server is a member of the job. It learns only from the first bytes
    /// of the connection whether the server accepts it.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done(..))
    }

    /// The identity of the peer, once it is authenticated.
    pub fn peer(&self) -> Option<&Peer> {
        if let State::Done(_, peer) = &self.state { Some(peer) } else { None }
    }

    /// The error to report when the socket was closed.
    pub fn closed(&self) -> TrustError {
        if let State::Failed(error) = &self.state { error.clone() } else { TrustError::Closed }
    }

    /// The error to report when the time limit has expired.
    pub fn too_slow(&self, limit: Duration) -> TrustError {
        TrustError::TooSlow { limit }
    }

    /// Creates the connection. The bytes in [`Handshake::pending`] become its first.
    ///
    /// # Errors
    /// [`TrustError::Closed`] if the handshake is not done, or the error that ended it.
    pub fn finish(self) -> Result<SecureStream, TrustError> {
        let closed = self.closed();
        let State::Done(connection, peer) = self.state else { return Err(closed) };
        let (secrets, schedule) = match connection {
            Connection::Server(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Schedule::Server(kernel))),
            Connection::Client(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Schedule::Client(kernel))),
        }
        .map_err(TrustError::crypto)?;
        let (received, unsent) = (&self.inbound[self.shown..], &self.outbound[self.sent_len..]);
        SecureStream::new(peer, secrets, schedule, received, unsent)
    }

    /// Continues the handshake as far as the received bytes allow.
    fn advance(&mut self) -> Result<(), TrustError> {
        match self.try_advance() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn try_advance(&mut self) -> Result<(), TrustError> {
        // The client sends the first message.
        if matches!(self.state, State::Client(..)) && self.shown == 0 && self.received_len == 0 {
            return self.show(0);
        }
        while !self.is_done()
            && let Some(end) = self.next_record_end()?
        {
            self.start()?;
            self.show(end)?;
        }
        Ok(())
    }

    /// Returns the end of the first record that rustls has not seen, if it is complete.
    ///
    /// Records are passed one at a time, so that rustls reads nothing after the last record of the
    /// handshake.
    fn next_record_end(&self) -> Result<Option<usize>, TrustError> {
        let rest = &self.inbound[self.shown..];
        let is_waiting = matches!(self.state, State::Waiting(_));
        let begins_wrong = is_waiting && rest.first().is_some_and(|kind| *kind != HANDSHAKE_TYPE);
        if begins_wrong || !looks_like_tls(rest) {
            return Err(not_tls(rest));
        }
        let Some(head) = rest.get(..RECORD_HEAD_LEN) else { return Ok(None) };
        let len = RECORD_HEAD_LEN + usize::from(u16::from_be_bytes([head[3], head[4]]));
        if len > HANDSHAKE_LEN_MAX {
            return Err(TrustError::TooLong { limit: HANDSHAKE_LEN_MAX });
        }
        Ok((len <= rest.len()).then_some(self.shown + len))
    }

    /// Creates the server's connection once the peer has sent TLS.
    fn start(&mut self) -> Result<(), TrustError> {
        if let State::Waiting(trust) = &self.state {
            let verifier = trust.verifier();
            let config = Arc::new(trust.server_config_with(Arc::clone(&verifier))?);
            let connection = UnbufferedServerConnection::new(config).map_err(TrustError::crypto)?;
            self.state = State::Server(Box::new(connection), verifier);
        }
        Ok(())
    }

    /// Passes the bytes up to `end` to rustls, collects its output, and checks whether it is done.
    fn show(&mut self, end: usize) -> Result<(), TrustError> {
        self.shown = end;
        let (is_done, verifier) = match &mut self.state {
            State::Server(connection, verifier) => {
                let drive = |bytes: &mut [u8], out: &mut Vec<u8>| {
                    step(connection.process_tls_records(bytes), out)
                };
                (run(drive, &mut self.inbound, &mut self.shown, &mut self.outbound), verifier)
            }
            State::Client(connection, verifier) => {
                let drive = |bytes: &mut [u8], out: &mut Vec<u8>| {
                    step(connection.process_tls_records(bytes), out)
                };
                (run(drive, &mut self.inbound, &mut self.shown, &mut self.outbound), verifier)
            }
            _ => return Ok(()),
        };
        match is_done {
            Ok(false) => Ok(()),
            Ok(true) => self.conclude(),
            Err(error) => Err(verifier.take_refusal().unwrap_or_else(|| in_words(error))),
        }
    }

    /// Records the identity of the peer once rustls has completed the handshake.
    fn conclude(&mut self) -> Result<(), TrustError> {
        let common: &CommonState = match &self.state {
            State::Server(connection, _) => connection,
            State::Client(connection, _) => connection,
            _ => return Ok(()),
        };
        if common.is_handshaking() {
            return Ok(());
        }
        let peer = peer_of(common)?;
        let nobody = State::Failed(TrustError::Closed);
        self.state = match std::mem::replace(&mut self.state, nobody) {
            State::Server(connection, _) => State::Done(Connection::Server(connection), peer),
            State::Client(connection, _) => State::Done(Connection::Client(connection), peer),
            other => other,
        };
        Ok(())
    }

    /// Fails the handshake and queues the alert for the peer.
    fn fail(&mut self, error: TrustError) -> TrustError {
        match &mut self.state {
            State::Waiting(_) => self.outbound.extend_from_slice(match &error {
                TrustError::TooLong { .. } => &alert::TOO_LONG,
                _ => &alert::NOT_TLS,
            }),
            State::Server(connection, _) => {
                while connection.wants_write() {
                    let _ = step(connection.process_tls_records(&mut []), &mut self.outbound);
                }
            }
            State::Client(connection, _) => {
                while connection.wants_write() {
                    let _ = step(connection.process_tls_records(&mut []), &mut self.outbound);
                }
            }
            State::Done(..) | State::Failed(_) => {}
        }
        self.state = State::Failed(error.clone());
        self.inbound = Vec::new();
        error
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Waiting(_) => "waiting",
            State::Server(..) | State::Client(..) => "running",
            State::Done(..) => "done",
            State::Failed(_) => "failed",
        };
        let mut out = f.debug_struct("Handshake");
        out.field("state", &state).field("received_len", &self.received_len).finish()
    }
}

/// The next step that rustls requires.
enum Next {
    /// Continue with the same bytes.
    Again,
    /// Receive more bytes.
    More,
    /// None: the handshake is complete.
    Done,
}

/// Runs rustls until it needs more bytes. Returns whether the handshake is complete.
fn run(
    mut drive: impl FnMut(&mut [u8], &mut Vec<u8>) -> (usize, Result<Next, Error>),
    inbound: &mut Vec<u8>,
    shown: &mut usize,
    outbound: &mut Vec<u8>,
) -> Result<bool, Error> {
    loop {
        let (discard, next) = drive(&mut inbound[..*shown], outbound);
        inbound.drain(..discard);
        *shown -= discard;
        match next? {
            Next::Again => {}
            Next::More => return Ok(false),
            Next::Done => return Ok(true),
        }
    }
}

/// Handles the result of one call of rustls.
fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    outbound: &mut Vec<u8>,
) -> (usize, Result<Next, Error>) {
    let next = status.state.map(|state| match state {
        ConnectionState::EncodeTlsData(mut data) => {
            let start = outbound.len();
            if let Err(EncodeError::InsufficientSize(error)) = data.encode(&mut []) {
                outbound.resize(start + error.required_size, 0);
                data.encode(&mut outbound[start..]).expect("it has the size that was asked for");
            }
            Next::Again
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Next::Again
        }
        ConnectionState::WriteTraffic(_) => Next::Done,
        _ => Next::More,
    });
    (status.discard, next)
}

/// Whether the bytes that have arrived can be the start of a TLS record.
fn looks_like_tls(bytes: &[u8]) -> bool {
    let is_type = |kind: &u8| (20..=23).contains(kind);
    bytes.first().is_none_or(is_type) && bytes.get(1).is_none_or(|major| *major == 3)
}

fn not_tls(bytes: &[u8]) -> TrustError {
    let first = bytes.get(..bytes.len().min(16)).unwrap_or_default();
    TrustError::NotTls { first: first.escape_ascii().to_string() }
}

/// Converts an error of rustls to an error for the user.
fn in_words(error: Error) -> TrustError {
    match error {
        Error::AlertReceived(alert) => alert::refusal(alert),
        Error::NoCertificatesPresented => TrustError::NoCertificate,
        Error::PeerIncompatible(why) => TrustError::OtherTls { why: format!("{why:?}") },
        Error::NoApplicationProtocol => {
            TrustError::OtherTls { why: "it offers no protocol of ours".to_owned() }
        }
        Error::InvalidCertificate(why) => TrustError::BadCertificate { why: why.to_string() },
        other => TrustError::Misbehaved { why: other.to_string() },
    }
}
