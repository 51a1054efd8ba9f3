//! A connection to another host before it is a link: who is there, and one frame at a time.

use super::dial::{Route, connected, resolved};
use super::gateway;
use super::parker::timespec;
use mesh_trust::{Handshake, Role, SecureStream, Trust, TrustError};
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The longest first frame, behind its head.
const FIRST_TAIL_MAX: usize = 16 << 10;
/// Sealed bytes that a first frame may come in, with whatever else the other side seals.
const FIRST_SEALED_MAX: usize = 64 << 10;

/// After this long without an answer from the other host's kernel a connection is broken: a new
/// one is through sooner than this one, which waits longer and longer between its attempts.
const SILENCE_MAX_MS: u32 = 1_000;
/// The other kernel is asked after as long without anything to answer: it may have given the
/// connection up, and what it said of that be lost.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// A connection to another process, as frames.
#[derive(Debug)]
pub struct Channel {
    /// The connection.
    pub stream: OwnedFd,
    /// The keys that frames are sealed with after the handshake. A channel of [`Channel::connect`]
    /// and of a gate always has them; only one over a Unix socket of this host has none.
    pub secure: Option<SecureStream>,
}

impl Channel {
    /// Connects to the first of `addresses` that takes it, and proves itself with `trust`.
    ///
    /// # Errors
    /// When none answers in time; [`io::ErrorKind::PermissionDenied`] when one side does not accept
    /// the proof of the other.
    pub fn connect(addresses: &[SocketAddr], trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::proved(opened(addresses, until)?, trust, until)
    }

    /// As [`Channel::connect`], the way that a route describes.
    ///
    /// # Errors
    /// As [`Channel::connect`], and when a name is not known or a gateway refuses.
    pub fn by(route: &Route, trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::proved(Self::reached(route, trust, until)?, trust, until)
    }

    /// Connects the way that a route describes; [`Channel::proved`] goes on.
    ///
    /// # Errors
    /// When none answers in time, a name is not known, or a gateway refuses.
    pub(super) fn reached(route: &Route, trust: &Trust, until: Instant) -> io::Result<OwnedFd> {
        if route.gateway.is_empty() {
            return opened(&resolved(&route.addresses)?, until);
        }
        gateway::ask(route, trust, until)
    }

    /// Shakes hands with whoever is at the other end.
    pub(super) fn proved(stream: OwnedFd, trust: &Trust, until: Instant) -> io::Result<Self> {
        Self::shake_hands(stream, trust, until).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => {
                let text = "it takes connections and does not answer: it is not a worker";
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                io::Error::new(io::ErrorKind::PermissionDenied, TrustError::Closed)
            }
            _ => error,
        })
    }

    fn shake_hands(stream: OwnedFd, trust: &Trust, until: Instant) -> io::Result<Self> {
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

    /// What the other side's certificate says that it may be; nothing over a Unix socket.
    pub fn role(&self) -> Option<Role> {
        self.secure.as_ref().map(|secure| secure.peer.role())
    }

    /// Goes on only with somebody of that role.
    ///
    /// # Errors
    /// When the other side is something else.
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

    /// Sends one frame, all of it.
    ///
    /// # Errors
    /// When the other side does not take it in time, or is gone.
    pub fn send(&mut self, frame: &Frame, until: Instant) -> io::Result<()> {
        let head = frame.head.encode(frame.tail.len());
        let bytes = [&head[..], &frame.tail].concat();
        let Some(secure) = &mut self.secure else { return send_all(&self.stream, &bytes, until) };
        let mut sent = 0;
        while sent < bytes.len() || !secure.sealer.pending().is_empty() {
            let piece = [IoSlice::new(&bytes[sent..])];
            sent += secure.sealer.write(&piece).map_err(io::Error::other)?;
            let len = secure.sealer.pending().len();
            send_all(&self.stream, secure.sealer.pending(), until)?;
            secure.sealer.sent(len);
        }
        Ok(())
    }

    /// Waits for the first frame that comes, which is to be of one of the kinds.
    ///
    /// # Errors
    /// When none comes in time, or something else.
    pub fn first(&mut self, allowed: &'static [Kind], until: Instant) -> io::Result<Frame> {
        let mut first = FirstFrame::new(allowed);
        loop {
            if let Some(frame) = first.read(self)? {
                return Ok(frame);
            }
            wait_for(&self.stream, PollFlags::IN, until)?;
        }
    }
}

fn opened(addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
    let stream = connected(addresses, until)?;
    give_up_soon(&stream)?;
    Ok(stream)
}

/// The first frame of a connection, as far as it has come.
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

    /// Reads what has come, and takes no memory for a tail before its head is judged.
    pub(super) fn read(&mut self, channel: &mut Channel) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.judge()? {
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

    /// Reads no byte beyond the frame: what follows belongs to the link.
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
        if let Some(plain) = secure.opener.open().map_err(io::Error::other)? {
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

    fn judge(&mut self) -> io::Result<Option<Frame>> {
        if self.missing() > 0 {
            return Ok(None);
        }
        if let Some((head, tail_len)) = self.decoded {
            // Nobody says more before he was answered.
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
        self.judge()
    }
}

/// Has the kernel find out soon that the other end of a connection is out of reach or gone.
pub(super) fn give_up_soon(stream: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_tcp_user_timeout(stream, SILENCE_MAX_MS)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE_MAX)?;
    Ok(sockopt::set_tcp_keepintvl(stream, IDLE_MAX)?)
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

/// Nothing when nothing has come; 0 at the end.
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
