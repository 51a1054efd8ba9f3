//! A connection to another host before it belongs to the engine: authentication and single frames.

use super::dial::{Route, connect_any, resolve};
use super::gateway;
use super::parker::timespec;
use mesh_trust::{Handshake, Role, SecureStream, TlsError, Trust, TrustError};
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Maximum length in bytes of the tail of a first frame.
const FIRST_TAIL_MAX: usize = 16 << 10;
/// Maximum number of encrypted bytes up to the end of the first frame, including other records.
const FIRST_SEALED_MAX: usize = 64 << 10;

/// The time without an acknowledgement of the other kernel after which a connection is broken.
///
/// A new connection is faster than the old one, whose retransmission interval grows.
const SILENCE_MAX_MS: u32 = 1_000;
/// The idle time after which keepalive probes are sent.
///
/// The other kernel may have dropped the connection, and its notification may be lost.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// A connection to another process that carries frames.
#[derive(Debug)]
pub struct Channel {
    /// The connection.
    pub stream: OwnedFd,
    /// The keys that encrypt frames after the handshake.
    ///
    /// A channel of [`Channel::connect`] and of a listener always has them; only a channel over a
    /// Unix socket of this host has none.
    pub secure: Option<SecureStream>,
}

impl Channel {
    /// Connects to the first of `addresses` that responds, and authenticates with `trust`.
    ///
    /// # Errors
    /// If none responds in time; [`io::ErrorKind::PermissionDenied`] if one side does not accept
    /// the credentials of the other.
    pub fn connect(addresses: &[SocketAddr], trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::authenticate(open_stream(addresses, until)?, trust, until)
    }

    /// Like [`Channel::connect`], along a route.
    ///
    /// # Errors
    /// As [`Channel::connect`], and if a name is unknown or a gateway refuses.
    pub fn connect_route(route: &Route, trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::authenticate(Self::open_route(route, trust, until)?, trust, until)
    }

    /// Connects along a route, without the handshake of [`Channel::authenticate`].
    ///
    /// # Errors
    /// If none responds in time, a name is unknown, or a gateway refuses.
    pub(super) fn open_route(route: &Route, trust: &Trust, until: Instant) -> io::Result<OwnedFd> {
        if route.gateway.is_empty() {
            return open_stream(&resolve(&route.addresses)?, until);
        }
        gateway::connect_through(route, trust, until)
    }

    /// Performs the handshake with the peer.
    pub(super) fn authenticate(stream: OwnedFd, trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::perform_handshake(stream, trust, until).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                let text = "it accepts connections but does not reply: it is not a worker";
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                io::Error::new(io::ErrorKind::PermissionDenied, TrustError::Closed)
            }
            _ => error,
        })
    }

    fn perform_handshake(stream: OwnedFd, trust: &Trust, until: Instant) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        let refused = |error: TrustError| io::Error::new(io::ErrorKind::PermissionDenied, error);
        let mut handshake = trust.connect().map_err(io::Error::other)?;
        let mut bytes = [0; 4096];
        while !handshake.is_done() {
            send_pending(&stream, &mut handshake, until)?;
            match receive(&stream, &mut bytes, until)? {
                0 => return Err(refused(handshake.closed())),
                len => {
                    let fed = handshake.feed(&bytes[..len]);
                    send_pending(&stream, &mut handshake, until)?;
                    fed.map_err(refused)?;
                }
            }
        }
        send_pending(&stream, &mut handshake, until)?;
        let secure = handshake.finish().map_err(io::Error::other)?;
        Ok(Self { stream, secure: Some(secure) })
    }

    /// Returns the role in the certificate of the peer; `None` over a Unix socket.
    pub fn role(&self) -> Option<Role> {
        self.secure.as_ref().map(|secure| secure.peer.role())
    }

    /// Checks the role of the peer.
    ///
    /// # Errors
    /// If the peer has another role.
    pub fn expect(&self, role: Role) -> io::Result<()> {
        match &self.secure {
            Some(secure) if secure.peer.role() != role => Err(io::Error::other(format!(
                "what listens there has the credentials of a {}, {:?}: give each worker its own, \
                 made by issue",
                secure.peer.role(),
                secure.peer.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Sends one frame completely.
    ///
    /// # Errors
    /// If the peer does not receive it in time, or has exited.
    pub fn send(&mut self, frame: &Frame, until: Instant) -> io::Result<()> {
        let head = frame.head.encode(frame.tail.len());
        let bytes = [&head[..], &frame.tail].concat();
        let Some(secure) = &mut self.secure else { return send_all(&self.stream, &bytes, until) };
        let mut sent = 0;
        while sent < bytes.len() || !secure.sealer.pending().is_empty() {
            let piece = [IoSlice::new(&bytes[sent..])];
            sent += secure.sealer.write(&piece).map_err(ended)?;
            let len = secure.sealer.pending().len();
            send_all(&self.stream, secure.sealer.pending(), until)?;
            secure.sealer.sent(len);
        }
        Ok(())
    }

    /// Waits for the first frame, which must be of one of the given kinds.
    ///
    /// # Errors
    /// If none arrives in time, or a frame of another kind arrives.
    pub fn receive_first(&mut self, allowed: &'static [Kind], until: Instant) -> io::Result<Frame> {
        let mut first = FirstFrame::new(allowed);
        loop {
            if let Some(frame) = first.read(self)? {
                return Ok(frame);
            }
            wait_for(&self.stream, PollFlags::IN, until)?;
        }
    }
}

fn open_stream(addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
    let stream = connect_any(addresses, until)?;
    set_failure_timeouts(&stream)?;
    Ok(stream)
}

/// The bytes of the first frame of a connection that have arrived so far.
#[derive(Debug)]
pub(super) struct FirstFrame {
    allowed: &'static [Kind],
    bytes: Vec<u8>,
    decoded: Option<(Head, usize)>,
    sealed_len: usize,
}

impl FirstFrame {
    pub(super) fn new(allowed: &'static [Kind]) -> Self {
        Self { allowed, bytes: Vec::new(), decoded: None, sealed_len: 0 }
    }

    /// Reads the available bytes, and allocates no memory for a tail before its head is checked.
    pub(super) fn read(&mut self, channel: &mut Channel) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.check()? {
                return Ok(Some(frame));
            }
            let got = match &mut channel.secure {
                None => self.read_plain(&channel.stream)?,
                Some(secure) => self.read_sealed(&channel.stream, secure)?,
            };
            if !got {
                return Ok(None);
            }
        }
    }

    fn missing(&self) -> usize {
        let whole = self.decoded.map_or(HEAD_LEN, |(_, tail_len)| HEAD_LEN + tail_len);
        whole.saturating_sub(self.bytes.len())
    }

    /// Reads no byte beyond the frame: the following bytes belong to the engine.
    fn read_plain(&mut self, stream: &OwnedFd) -> io::Result<bool> {
        let (start, missing) = (self.bytes.len(), self.missing());
        self.bytes.resize(start + missing, 0);
        let got = try_receive(stream, &mut self.bytes[start..]);
        self.bytes.truncate(start + *got.as_ref().unwrap_or(&None).as_ref().unwrap_or(&0));
        match got? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(_) => Ok(true),
            None => Ok(false),
        }
    }

    fn read_sealed(&mut self, stream: &OwnedFd, secure: &mut SecureStream) -> io::Result<bool> {
        if let Some(plain) = secure.opener.open().map_err(ended)? {
            if self.bytes.len() + plain.len() > HEAD_LEN + FIRST_TAIL_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.bytes.extend_from_slice(plain);
            return Ok(true);
        }
        if secure.opener.is_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match try_receive(stream, secure.opener.spare())? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => {
                self.sealed_len += len;
                if self.sealed_len > FIRST_SEALED_MAX {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                secure.opener.filled(len);
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn check(&mut self) -> io::Result<Option<Frame>> {
        if self.missing() > 0 {
            return Ok(None);
        }
        if let Some((head, tail_len)) = self.decoded {
            // A peer sends nothing more before it gets a reply.
            if self.bytes.len() > HEAD_LEN + tail_len {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let tail = self.bytes.split_off(HEAD_LEN).into();
            return Ok(Some(Frame { head, tail }));
        }
        let head = self.bytes.first_chunk().expect("nothing of a head is missing");
        let (head, tail_len) = Head::decode(head).map_err(io::Error::other)?;
        if !self.allowed.contains(&head.kind) || tail_len > FIRST_TAIL_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.decoded = Some((head, tail_len));
        self.check()
    }
}

/// Makes the kernel detect soon that the peer of a connection is unreachable or has exited.
pub(super) fn set_failure_timeouts(stream: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX_MS)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE_MAX)?;
    Ok(sockopt::set_tcp_keepintvl(stream, IDLE_MAX)?)
}

/// Explains why an encrypted connection has ended.
pub(super) fn ended(error: TlsError) -> io::Error {
    io::Error::other(TrustError::from(error))
}

fn send_pending(stream: &OwnedFd, handshake: &mut Handshake, until: Instant) -> io::Result<()> {
    let len = handshake.pending().len();
    send_all(stream, handshake.pending(), until)?;
    handshake.sent(len);
    Ok(())
}

fn send_all(stream: &OwnedFd, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::OUT, until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn receive(stream: &OwnedFd, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
    loop {
        if let Some(len) = try_receive(stream, bytes)? {
            return Ok(len);
        }
        wait_for(stream, PollFlags::IN, until)?;
    }
}

/// Receives available bytes; `None` if there are none, and 0 at the end of the stream.
pub(super) fn try_receive(stream: &OwnedFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(stream, &mut *bytes, RecvFlags::empty()) {
            Ok((len, _)) => return Ok(Some(len)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

fn wait_for(stream: &OwnedFd, what: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::new(stream, what)];
    if left.is_zero() || poll(&mut fds, Some(&timespec(left)))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}
