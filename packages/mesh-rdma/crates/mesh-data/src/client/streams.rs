//! A pool of connections that carry the bytes of buffers, one per concurrent copy.

use crate::client::happy_eyeballs::connect_first;
use crate::client::link::{exchange, unix_socket, unreachable};
use crate::client::retries::Retries;
use crate::connection::blocking_io::SocketError;
use crate::connection::frame::{Reply, Request, Status, Verb};
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::connection::socket::Socket;
use crate::domain::lock;
use crate::error::DataError;
use crate::security::authentication::introduce;
use crate::security::handshake;
use crate::server::connection_handler::CHUNK_LEN;
use crate::server::interfaces::{interfaces, nearest_first};
use crate::span::Span;
use crate::stop::Stop;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The number of idle connections that are kept in addition to the connections of one transfer.
const IDLE_MORE: usize = 2;
/// How long the listener may take to prove its identity.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// The network of a connection.
#[derive(Debug)]
pub(crate) enum Network {
    /// A network. The address of the last successful connection is tried first.
    Remote(Mutex<Option<SocketAddr>>),
    /// The loopback network of this machine, which both sides share.
    Loopback,
    /// A Unix domain socket.
    Unix,
}

/// The connections to one process over one network.
#[derive(Debug)]
pub(crate) struct Streams {
    descriptor: PeerDescriptor,
    network: Network,
    width: usize,
    idle: Mutex<Vec<Stream>>,
    /// All connections, including those in use.
    open: Mutex<Vec<Weak<Socket>>>,
}

/// One connection between two copies.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: Arc<Socket>,
    /// The number of the connection at the other side.
    number: u64,
}

impl Network {
    /// A network to other machines.
    pub(crate) fn remote() -> Self {
        Self::Remote(Mutex::default())
    }

    /// Connects, and proves that this process has a handle. Returns the number that the other side
    /// has assigned to the connection.
    pub(crate) fn connect_and_authenticate(
        &self,
        descriptor: &PeerDescriptor,
        stop: &Stop,
    ) -> Result<(Socket, u64), DataError> {
        let mut retries = Retries::default();
        let (socket, (reply, body)) = loop {
            let socket = self.connect(descriptor, stop)?;
            let is_loopback = matches!(self, Self::Loopback) && is_on_loopback(descriptor);
            match introduce(&socket, descriptor, is_loopback, stop) {
                Ok(reply) => break (socket, reply),
                Err(error) => {
                    retries.wait(error, stop).map_err(|error| error.of(&descriptor.name))?;
                }
            }
        };
        if reply.status != Status::Done {
            let why = String::from_utf8_lossy(&body).into_owned();
            return Err(DataError::Refused { name: descriptor.name.clone(), why });
        }
        Ok((socket, reply.value))
    }

    fn connect(&self, descriptor: &PeerDescriptor, stop: &Stop) -> Result<Socket, DataError> {
        match self {
            Self::Unix => {
                unix_socket(descriptor, stop).map_err(|error| unreachable(error, descriptor))
            }
            Self::Loopback => loopback_socket(descriptor, stop),
            Self::Remote(place) => remote_socket(descriptor, place, stop),
        }
    }
}

impl Streams {
    /// An empty pool.
    pub(crate) fn new(descriptor: &PeerDescriptor, network: Network, width: usize) -> Self {
        let (idle, open) = Default::default();
        Self { descriptor: descriptor.clone(), network, width, idle, open }
    }

    /// Shuts down all connections.
    pub(crate) fn shut(&self) {
        lock(&self.idle).clear();
        lock(&self.open).drain(..).filter_map(|one| one.upgrade()).for_each(|one| one.shut());
    }

    /// Acquires a connection for one copy.
    pub(crate) fn acquire(&self, stop: &Stop) -> Result<Stream, DataError> {
        let idle = lock(&self.idle).pop();
        idle.map_or_else(|| self.add(stop), Ok)
    }

    /// Opens a new connection for one copy, which the other side cannot have closed yet.
    pub(crate) fn add(&self, stop: &Stop) -> Result<Stream, DataError> {
        let (socket, number) = self.network.connect_and_authenticate(&self.descriptor, stop)?;
        let socket = Arc::new(socket);
        let mut open = lock(&self.open);
        open.retain(|one| one.strong_count() > 0);
        open.push(Arc::downgrade(&socket));
        Ok(Stream { socket, number })
    }

    /// Makes the owner end the operation of another connection; returns whether it did so in time.
    pub(crate) fn fence(&self, number: u64, limit: Duration) -> bool {
        let stop = Stop::after(Some(limit));
        let request = Request::of(Verb::Fence, 0, number);
        let Ok(stream) = self.acquire(&stop) else { return false };
        let is_done = matches!(stream.write(&request, NO_BYTES, &stop), Ok(Ok(_)));
        if is_done {
            self.release(stream);
        }
        is_done
    }

    /// The number of connections that carry one transfer.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Returns a connection to the pool after its copy is complete.
    pub(crate) fn release(&self, stream: Stream) {
        let mut idle = lock(&self.idle);
        if idle.len() < self.width + IDLE_MORE {
            idle.push(stream);
        }
    }
}

impl Stream {
    /// Resets the connection, so that no more of the sent data arrives; returns its number.
    pub(crate) fn abort(self) -> u64 {
        self.socket.reset_when_closed();
        self.number
    }

    /// Reads a range directly to its destination. After an error of the connection, the connection
    /// must be discarded; an error that the other side has reported leaves it usable.
    pub(crate) fn read(
        &self,
        request: &Request,
        to: Span,
        stop: &Stop,
    ) -> Result<Result<(), DataError>, SocketError> {
        self.socket.send_request(request, NO_BYTES, Some(stop))?;
        let mut received = 0;
        loop {
            let len = CHUNK_LEN.min(to.len - received);
            let destination = to.part(received, len).expect("inside of the range");
            let reply = self.socket.receive_reply_into(destination, Some(stop))?;
            if let Err(error) = reply.outcome(request) {
                return Ok(Err(error));
            }
            received += len;
            if received == to.len {
                return Ok(Ok(()));
            }
        }
    }

    /// Reads rows, which arrive packed; `put` receives them in order.
    pub(crate) fn gather(
        &self,
        request: &Request,
        grid: &[u8],
        len: u64,
        stop: &Stop,
        mut put: impl FnMut(&[u8]),
    ) -> Result<Result<(), DataError>, SocketError> {
        let body = Span { start: grid.as_ptr() as usize, len: grid.len() };
        self.socket.send_request(request, body, Some(stop))?;
        let mut buffer = vec![0; CHUNK_LEN.min(usize::try_from(len).unwrap_or(CHUNK_LEN))];
        let mut left = len;
        while left > 0 {
            let now = buffer.len().min(usize::try_from(left).unwrap_or(CHUNK_LEN));
            let part = Span { start: buffer.as_mut_ptr() as usize, len: now };
            let reply = self.socket.receive_reply_into(part, Some(stop))?;
            if let Err(error) = reply.outcome(request) {
                return Ok(Err(error));
            }
            put(&buffer[..now]);
            left -= now as u64;
        }
        Ok(Ok(()))
    }

    /// Sends a request, and waits for the reply and its body.
    pub(crate) fn call(
        &self,
        request: &Request,
        body: &[u8],
        stop: &Stop,
    ) -> Result<(Reply, Vec<u8>), SocketError> {
        exchange(&self.socket, request, body, stop).map(|(reply, bytes, _)| (reply, bytes))
    }

    /// Writes a range.
    pub(crate) fn write(
        &self,
        request: &Request,
        from: Span,
        stop: &Stop,
    ) -> Result<Result<u64, DataError>, SocketError> {
        debug_assert!(request.verb != Verb::Write || request.length == from.len as u64);
        self.socket.send_request(request, from, Some(stop))?;
        let reply: Reply = self.socket.receive_reply(Some(stop))?;
        Ok(reply.outcome(request))
    }
}

/// Whether a process of this machine accepts connections on loopback. Otherwise, it listens on one
/// address, and requires a TLS handshake from all clients.
fn is_on_loopback(descriptor: &PeerDescriptor) -> bool {
    descriptor.addresses.iter().any(IpAddr::is_loopback)
}

/// Connects within this machine, to a process that has proved to share its network.
fn loopback_socket(descriptor: &PeerDescriptor, stop: &Stop) -> Result<Socket, DataError> {
    if !is_on_loopback(descriptor) {
        return sealed_socket(
            descriptor,
            targets_of(descriptor, &descriptor.addresses),
            None,
            stop,
        );
    }
    let here = descriptor.addresses.iter().filter(|address| address.is_loopback());
    let targets: Vec<_> = here.map(|address| SocketAddr::new(*address, descriptor.port)).collect();
    let ready = || {
        let socket = Socket::open(connect_first(&targets, stop)?.0);
        socket.wait_in_ticks()?;
        Ok(socket)
    };
    ready().map_err(|error: SocketError| error.of(&descriptor.name))
}

/// Connects to a process on another machine, or in another network of this one.
fn remote_socket(
    descriptor: &PeerDescriptor,
    place: &Mutex<Option<SocketAddr>>,
    stop: &Stop,
) -> Result<Socket, DataError> {
    let ours = interfaces().map_err(DataError::system("cannot list the addresses of this host"))?;
    let mut targets = targets_of(descriptor, &nearest_first(&descriptor.addresses, &ours));
    if targets.is_empty() {
        let why = "it listens for processes of its own machine only: see rdma_listen".to_owned();
        return Err(DataError::TransportUnavailable { transport: "tcp", why });
    }
    if let Some(known) = *lock(place) {
        targets.sort_by_key(|target| *target != known);
    }
    sealed_socket(descriptor, targets, Some(place), stop)
}

/// Connects to the first address where the owner itself replies: other hosts may have the same
/// address.
fn sealed_socket(
    descriptor: &PeerDescriptor,
    mut targets: Vec<SocketAddr>,
    place: Option<&Mutex<Option<SocketAddr>>>,
    stop: &Stop,
) -> Result<Socket, DataError> {
    let mut retries = Retries::default();
    loop {
        let connected = connect_first(&targets, stop);
        let (fd, target) = connected.map_err(|error: SocketError| error.of(&descriptor.name))?;
        let limit = stop.left().map_or(PROOF_LIMIT, |left| left.min(PROOF_LIMIT));
        let socket = Socket::open(fd);
        let prove = || {
            socket.wait_in_ticks()?;
            handshake::connect(socket.as_fd(), descriptor.fingerprint, &Stop::after(Some(limit)))
        };
        match prove() {
            Ok(keys) => {
                socket.seal_with(keys);
                if let Some(place) = place {
                    *lock(place) = Some(target);
                }
                return Ok(socket);
            }
            Err(error) => {
                stop.check_waiting()?;
                let Err(error) = retries.wait(error, stop) else { continue };
                targets.retain(|one| *one != target);
                if targets.is_empty() {
                    return Err(match error {
                        SocketError::Stopped(_) => DataError::PeerDied {
                            name: descriptor.name.clone(),
                            why: format!("{target} did not identify itself"),
                        },
                        SocketError::Unproven(why) => {
                            SocketError::Unproven(format!("{target}: {why}")).of(&descriptor.name)
                        }
                        error => error.of(&descriptor.name),
                    });
                }
            }
        }
    }
}

fn targets_of(descriptor: &PeerDescriptor, addresses: &[IpAddr]) -> Vec<SocketAddr> {
    addresses.iter().map(|address| SocketAddr::new(*address, descriptor.port)).collect()
}
