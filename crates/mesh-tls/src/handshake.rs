//! The handshake of a connection.

use crate::error::TlsError;
use crate::record::{Opener, RECORD_HEAD_LEN, Schedule, Sealer, directions};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};
use std::fmt;
use std::sync::Arc;

/// The maximum number of bytes that a peer may send before it is authenticated.
///
/// A client of this crate sends about two thousand. This is also the maximum memory for these
/// bytes.
pub const HANDSHAKE_LEN_MAX: usize = 8 << 10;

/// The first byte of a record that carries a handshake message.
const HANDSHAKE_TYPE: u8 = 22;

/// The alert that closes a connection on which the peer does not speak TLS: level fatal,
/// `unexpected_message`.
const NOT_TLS: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];
/// The alert that ends a handshake that is too long: level fatal, `record_overflow`.
const TOO_LONG: [u8; 7] = [21, 3, 3, 0, 2, 2, 22];

/// Creates the configuration of a server when it is needed.
type Configure = Box<dyn FnOnce() -> Result<Arc<ServerConfig>, TlsError> + Send + Sync>;

/// One side of a handshake, independent of sockets.
///
/// Pass the bytes from the socket to [`Handshake::feed`]. Then write [`Handshake::pending`] to the
/// socket, even after an error, so that the peer learns why it is refused. When
/// [`Handshake::is_done`] returns true, [`Handshake::finish`] converts the handshake to a
/// connection.
///
/// The caller enforces deadlines, and bounds the number of concurrent handshakes.
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

enum State {
    /// A server whose peer has not sent a complete record that looks like TLS.
    Waiting(Option<Configure>),
    Running(Connection),
    Done(Connection),
    Failed(TlsError),
}

enum Connection {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

impl Handshake {
    /// Starts the handshake of a connection that a peer has opened.
    ///
    /// `configure` is called when the peer has sent its first handshake message. Until then, the
    /// handshake uses almost no memory.
    pub fn server(
        configure: impl FnOnce() -> Result<Arc<ServerConfig>, TlsError> + Send + Sync + 'static,
    ) -> Self {
        Self::new(State::Waiting(Some(Box::new(configure))))
    }

    /// Starts the handshake of a connection that this process has opened.
    ///
    /// # Errors
    /// [`TlsError::Crypto`] if the system provides no randomness.
    pub fn client(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, TlsError> {
        let connection = UnbufferedClientConnection::new(config, name);
        let connection = Connection::Client(Box::new(connection.map_err(TlsError::crypto)?));
        let mut handshake = Self::new(State::Running(connection));
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
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TlsError> {
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        while !bytes.is_empty() && !self.is_done() {
            if self.received_len == HANDSHAKE_LEN_MAX {
                return Err(self.fail(TlsError::TooLong { limit: HANDSHAKE_LEN_MAX }));
            }
            if self.inbound.capacity() == 0 {
                self.inbound.reserve_exact(HANDSHAKE_LEN_MAX);
            }
            let free_len = HANDSHAKE_LEN_MAX - self.received_len;
            let (taken, rest) = bytes.split_at(bytes.len().min(free_len));
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

    /// Whether the handshake is complete, as far as this side knows.
    ///
    /// A client knows that its server is authenticated. It learns only from the first bytes of the
    /// connection whether the server accepts it.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done(_))
    }

    /// The information that rustls has about the peer once the handshake is complete.
    pub fn connection(&self) -> Option<&CommonState> {
        if let State::Done(connection) = &self.state { Some(connection.common()) } else { None }
    }

    /// The error to report when the socket was closed.
    pub fn closed(&self) -> TlsError {
        if let State::Failed(error) = &self.state { error.clone() } else { TlsError::Closed }
    }

    /// Creates the two directions of the connection. The bytes in [`Handshake::pending`] become the
    /// first that it sends.
    ///
    /// Each direction buffers at most `records_max` records of maximum length.
    ///
    /// # Errors
    /// [`TlsError::Closed`] if the handshake is not done, or the error that ended it.
    pub fn finish(mut self, records_max: usize) -> Result<(Sealer, Opener), TlsError> {
        let closed = self.closed();
        let State::Done(connection) = self.state else { return Err(closed) };
        let (secrets, schedule) = match connection {
            Connection::Server(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Schedule::Server(kernel))),
            Connection::Client(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(secrets, kernel)| (secrets, Schedule::Client(kernel))),
        }
        .map_err(TlsError::crypto)?;
        let buffered = (self.inbound.split_off(self.shown), self.outbound.split_off(self.sent_len));
        directions(secrets, schedule, buffered, records_max)
    }

    /// Continues the handshake as far as the received bytes allow.
    fn advance(&mut self) -> Result<(), TlsError> {
        match self.try_advance() {
            Ok(()) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn try_advance(&mut self) -> Result<(), TlsError> {
        // The client sends the first message.
        if matches!(self.state, State::Running(_)) && self.received_len == 0 {
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
    fn next_record_end(&self) -> Result<Option<usize>, TlsError> {
        let rest = &self.inbound[self.shown..];
        let is_waiting = matches!(self.state, State::Waiting(_));
        let begins_wrong = is_waiting && rest.first().is_some_and(|kind| *kind != HANDSHAKE_TYPE);
        if begins_wrong || !looks_like_tls(rest) {
            return Err(not_tls(rest));
        }
        let Some(head) = rest.get(..RECORD_HEAD_LEN) else { return Ok(None) };
        let len = RECORD_HEAD_LEN + usize::from(u16::from_be_bytes([head[3], head[4]]));
        if len > HANDSHAKE_LEN_MAX {
            return Err(TlsError::TooLong { limit: HANDSHAKE_LEN_MAX });
        }
        Ok((len <= rest.len()).then_some(self.shown + len))
    }

    /// Creates the server's connection once the peer has sent TLS.
    fn start(&mut self) -> Result<(), TlsError> {
        if let State::Waiting(configure) = &mut self.state
            && let Some(configure) = configure.take()
        {
            let connection = UnbufferedServerConnection::new(configure()?);
            let connection = connection.map_err(TlsError::crypto)?;
            self.state = State::Running(Connection::Server(Box::new(connection)));
        }
        Ok(())
    }

    /// Passes the bytes up to `end` to rustls, collects its output, and checks whether it is done.
    fn show(&mut self, end: usize) -> Result<(), TlsError> {
        self.shown = end;
        let State::Running(connection) = &mut self.state else { return Ok(()) };
        loop {
            let shown = &mut self.inbound[..self.shown];
            let (discard, next) = connection.process(shown, &mut self.outbound);
            self.inbound.drain(..discard);
            self.shown -= discard;
            match next? {
                Next::Again => {}
                Next::More => return Ok(()),
                Next::Done => break,
            }
        }
        if !connection.common().is_handshaking() {
            self.state = match std::mem::replace(&mut self.state, State::Waiting(None)) {
                State::Running(connection) => State::Done(connection),
                other => other,
            };
        }
        Ok(())
    }

    /// Fails the handshake and queues the alert for the peer.
    fn fail(&mut self, error: TlsError) -> TlsError {
        match &mut self.state {
            State::Waiting(_) => self.outbound.extend_from_slice(match &error {
                TlsError::TooLong { .. } => &TOO_LONG,
                _ => &NOT_TLS,
            }),
            State::Running(connection) => {
                while connection.common().wants_write() {
                    let _ = connection.process(&mut [], &mut self.outbound);
                }
            }
            State::Done(_) | State::Failed(_) => {}
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
            State::Running(_) => "running",
            State::Done(_) => "done",
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

impl Connection {
    /// Calls rustls once; returns the number of bytes that it has consumed, and its next step.
    fn process(
        &mut self,
        bytes: &mut [u8],
        outbound: &mut Vec<u8>,
    ) -> (usize, Result<Next, Error>) {
        match self {
            Self::Server(connection) => step(connection.process_tls_records(bytes), outbound),
            Self::Client(connection) => step(connection.process_tls_records(bytes), outbound),
        }
    }

    fn common(&self) -> &CommonState {
        match self {
            Self::Server(connection) => connection,
            Self::Client(connection) => connection,
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

fn not_tls(bytes: &[u8]) -> TlsError {
    let first = bytes.get(..bytes.len().min(16)).unwrap_or_default();
    TlsError::NotTls { first: first.escape_ascii().to_string() }
}
