//! The accept loop of a listener: authenticates peers and waits for their first frames.

use super::super::channel::{Channel, FirstFrame, try_receive};
use super::super::parker::timespec;
use super::pending_connections::PendingConnections;
use super::{AcceptedConnection, Listener, ListenerLimits};
use mesh_trust::{Handshake, Trust};
use mesh_wire::frame::{Frame, Kind};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrAny, SocketFlags};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SOCKET: u64 = u64::MAX;
const WAKER: u64 = u64::MAX - 1;
/// Maximum number of connections accepted in a row: existing ones get their turn in between.
const ACCEPTS_MAX: usize = 64;
/// How long accepting pauses if no descriptors are left and no pending connection can be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A pending connection, whose first frame has not arrived.
struct PendingConnection {
    channel: Channel,
    /// Present until the peer is authenticated.
    handshake: Option<Handshake>,
    address: Option<SocketAddr>,
    first: FirstFrame,
}

pub(super) struct AcceptLoop {
    listener: Arc<Listener>,
    socket: OwnedFd,
    trust: Trust,
    limits: ListenerLimits,
    epoll: OwnedFd,
    pending: PendingConnections<PendingConnection>,
    /// When to listen again, while accepting is paused.
    resumes_at: Option<Instant>,
}

impl AcceptLoop {
    pub(super) fn new(
        listener: Arc<Listener>,
        socket: OwnedFd,
        trust: Trust,
        limits: ListenerLimits,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = epoll::EventData::new_u64(WAKER);
        epoll::add(&epoll, listener.waker.as_fd(), waker, epoll::EventFlags::IN)?;
        let pending = PendingConnections::new();
        let accept_loop =
            Self { listener, socket, trust, limits, epoll, pending, resumes_at: None };
        accept_loop.listen()?;
        Ok(accept_loop)
    }

    fn listen(&self) -> io::Result<()> {
        let token = epoll::EventData::new_u64(SOCKET);
        Ok(epoll::add(&self.epoll, &self.socket, token, epoll::EventFlags::IN)?)
    }

    pub(super) fn run(&mut self) {
        while !self.listener.is_closed.load(Ordering::SeqCst) {
            let left = [self.expire(), self.resume()].into_iter().flatten().min();
            let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
            let left = left.map(timespec);
            let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut events, left.as_ref()) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(_) => continue,
            };
            for token in tokens {
                match token {
                    SOCKET => self.accept(),
                    WAKER => self.listener.waker.reset(),
                    number => self.read_pending(number),
                }
            }
        }
    }

    /// Drops connections past their time limit; returns the remaining time of the next one.
    fn expire(&mut self) -> Option<Duration> {
        let now = Instant::now();
        loop {
            match self.pending.overdue(self.limits.first_frame_max, now) {
                Ok(number) => drop(self.pending.remove(number)),
                Err(left) => return left,
            }
        }
    }

    /// Resumes listening if the pause is over; otherwise returns the remaining time.
    fn resume(&mut self) -> Option<Duration> {
        let left = self.resumes_at?.saturating_duration_since(Instant::now());
        if left.is_zero() && self.listen().is_ok() {
            self.resumes_at = None;
            return None;
        }
        Some(left.max(Duration::from_millis(1)))
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        for _ in 0..ACCEPTS_MAX {
            match rustix::net::acceptfrom_with(&self.socket, flags) {
                Ok((stream, address)) => self.add_pending(stream, address.and_then(socket_addr)),
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // The connection stays in the queue of the listener, and would wake this thread
                    // again.
                    let Some(number) = self.pending.eviction_candidate() else {
                        return self.pause();
                    };
                    self.pending.remove(number);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => return,
            }
        }
    }

    fn add_pending(&mut self, stream: OwnedFd, address: Option<SocketAddr>) {
        let token = epoll::EventData::new_u64(self.pending.next());
        if epoll::add(&self.epoll, &stream, token, epoll::EventFlags::IN).is_err() {
            return;
        }
        let first = FirstFrame::new(&[Kind::Hello, Kind::Attach]);
        let handshake = Some(self.trust.accept());
        let channel = Channel { stream, secure: None };
        let connection = PendingConnection { channel, handshake, address, first };
        self.pending.add(address, Instant::now(), connection);
        if self.pending.len() > self.limits.pending_max
            && let Some(number) = self.pending.eviction_candidate()
        {
            self.pending.remove(number);
        }
    }

    fn pause(&mut self) {
        // The listener is registered: this was called because of an event on it.
        let _ = epoll::delete(&self.epoll, &self.socket);
        self.resumes_at = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn read_pending(&mut self, number: u64) {
        let Some(connection) = self.pending.get_mut(number) else { return };
        match connection.read() {
            Ok(None) => {
                if connection.channel.secure.is_some() {
                    self.pending.mark_authenticated(number);
                }
            }
            Ok(Some(first)) => {
                let Some(connection) = self.pending.remove(number) else { return };
                // The socket was registered until now.
                let _ = epoll::delete(&self.epoll, &connection.channel.stream);
                let (channel, address) = (Mutex::new(connection.channel), connection.address);
                self.listener.dispatch(AcceptedConnection { channel, address, first });
            }
            Err(_) => {
                self.pending.remove(number);
            }
        }
    }
}

impl PendingConnection {
    /// Continues the handshake, and then reads the first frame.
    fn read(&mut self) -> io::Result<Option<Frame>> {
        while let Some(handshake) = &mut self.handshake {
            if handshake.is_done() {
                break;
            }
            let mut bytes = [0; 4096];
            let fed = match try_receive(&self.channel.stream, &mut bytes)? {
                None => return Ok(None),
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(len) => handshake.feed(&bytes[..len]),
            };
            // These are a few hundred bytes into an empty buffer; a peer that does not read them is
            // refused.
            let pending = handshake.pending();
            let sent = rustix::net::send(&self.channel.stream, pending, SendFlags::NOSIGNAL)?;
            let is_all = sent == pending.len();
            handshake.sent(sent);
            fed.map_err(io::Error::other)?;
            if !is_all {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        if let Some(handshake) = self.handshake.take() {
            self.channel.secure = Some(handshake.finish().map_err(io::Error::other)?);
        }
        self.first.read(&mut self.channel)
    }
}

fn socket_addr(address: SocketAddrAny) -> Option<SocketAddr> {
    match address.address_family() {
        AddressFamily::INET | AddressFamily::INET6 => address.try_into().ok(),
        _ => None,
    }
}
