//! The client side of a connection to a process that owns memory.
#![expect(unsafe_code, reason = "looks at a known word of the other process")]

use crate::client::retries::with_retries;
use crate::client::streams::{Network, Streams};
use crate::connection::blocking_io::SocketError;
use crate::connection::frame::{Reply, Request, Status, Verb};
use crate::connection::peer_descriptor::PeerDescriptor;
use crate::connection::socket::Socket;
use crate::copy::attach::{AttachedProcess, peer_credentials, refusal};
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::memory::cells::Cells;
use crate::memory::ledger::Ledger;
use crate::memory::shared_map::SharedMap;
use crate::security::authentication::hello;
use crate::span::Span;
use crate::stop::Stop;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// How long the other side may take to authenticate this process.
const HELLO_LIMIT: Duration = Duration::from_secs(10);
/// The time in addition to the limit of a request after which the other side counts as hung.
const GRACE: Duration = Duration::from_secs(2);

/// The number of Unix domain sockets that carry one transfer.
const UNIX_STREAMS: usize = 2;

/// A connection to one process.
#[derive(Debug)]
pub struct Link {
    pub(crate) descriptor: PeerDescriptor,
    control: Mutex<Socket>,
    /// The reason why the connection has ended, once it has.
    disconnect_reason: OnceLock<String>,
    /// The memory shared with a process of this machine, or the reason why there is none.
    pub(crate) local_peer: Result<LocalPeer, String>,
    /// Connections over the network that carry bytes.
    pub(crate) tcp: Streams,
    /// Unix domain sockets that carry bytes.
    pub(crate) unix: Streams,
}

/// The resources that two processes of one machine share.
#[derive(Debug)]
pub(crate) struct LocalPeer {
    pub(crate) cells: Cells,
    pub(crate) ledger: Ledger,
    pub(crate) process: AttachedProcess,
    /// The reason why its memory cannot be attached, if it cannot.
    pub(crate) attach_refusal: Option<String>,
    maps: Mutex<HashMap<u32, Arc<SharedMap>>>,
}

impl Link {
    /// Connects to a process, or returns the existing connection.
    ///
    /// # Errors
    /// The process has died, cannot be reached, or refuses this process.
    pub fn get_or_connect(
        domain: &Arc<Domain>,
        descriptor: &PeerDescriptor,
    ) -> Result<Arc<Self>, DataError> {
        if let Some(link) = lock(&domain.links).get(&descriptor.token)
            && link.disconnect_reason.get().is_none()
        {
            return Ok(Arc::clone(link));
        }
        domain.unreachable_peers.check(descriptor)?;
        let connected = Self::connect(domain, descriptor);
        if let Err(DataError::PeerDied { why, .. }) = &connected {
            domain.unreachable_peers.add(descriptor, why);
        }
        let link = Arc::new(connected?);
        // Two threads may have connected concurrently: the first connection is kept.
        let mut links = lock(&domain.links);
        let kept = links.entry(descriptor.token).or_insert_with(|| Arc::clone(&link));
        if kept.disconnect_reason.get().is_some() {
            *kept = Arc::clone(&link);
        }
        let kept = Arc::clone(kept);
        drop(links);
        if Arc::ptr_eq(&kept, &link) {
            domain.peer_monitor.add(&kept);
        }
        Ok(kept)
    }

    fn connect(domain: &Domain, descriptor: &PeerDescriptor) -> Result<Self, DataError> {
        let stop = Stop::after(Some(HELLO_LIMIT));
        if descriptor.boot == domain.descriptor().boot {
            let (socket, local_peer) = with_retries(&stop, || {
                let socket = unix_socket(descriptor, &stop)?;
                let local_peer = LocalPeer::hello(&socket, descriptor, &stop)?;
                Ok((socket, local_peer))
            })
            .map_err(|error| unreachable(error, descriptor))?;
            return Ok(Self::new(domain, descriptor, socket, Ok(local_peer), Network::Loopback));
        }
        let why = "it is on another machine".to_owned();
        let network = Network::remote();
        let (socket, _) = network.connect_and_authenticate(descriptor, &stop)?;
        Ok(Self::new(domain, descriptor, socket, Err(why), network))
    }

    fn new(
        domain: &Domain,
        descriptor: &PeerDescriptor,
        socket: Socket,
        local_peer: Result<LocalPeer, String>,
        tcp: Network,
    ) -> Self {
        let tcp_streams = domain.tcp_streams();
        Self {
            descriptor: descriptor.clone(),
            control: Mutex::new(socket),
            disconnect_reason: OnceLock::new(),
            local_peer,
            tcp: Streams::new(descriptor, tcp, tcp_streams),
            unix: Streams::new(descriptor, Network::Unix, UNIX_STREAMS),
        }
    }

    /// Fails if the process is known to be dead.
    pub(crate) fn check(&self) -> Result<(), DataError> {
        match self.disconnect_reason.get() {
            None => Ok(()),
            Some(why) => {
                Err(DataError::PeerDied { name: self.descriptor.name.clone(), why: why.clone() })
            }
        }
    }

    /// Marks the process as dead, which ends all operations on the connection.
    pub(crate) fn mark_dead(&self, why: &str) {
        let _ = self.disconnect_reason.set(why.to_owned());
        self.tcp.shut();
        self.unix.shut();
    }

    /// Calls `look` with the socket that is monitored for the end of the process.
    pub(crate) fn with_control<T>(&self, look: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
        look(lock(&self.control).as_fd())
    }

    /// Sends a request, and waits for the reply and its body.
    pub(crate) fn call(
        &self,
        request: &Request,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Reply, Vec<u8>), DataError> {
        self.call_with_descriptors(request, body, limit).map(|(reply, bytes, _)| (reply, bytes))
    }

    /// Like [`Link::call`], but on a separate stream, so that a long request blocks no others.
    pub(crate) fn call_on_stream(
        &self,
        request: &Request,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Reply, Vec<u8>), DataError> {
        self.check()?;
        let streams = if self.local_peer.is_ok() { &self.unix } else { &self.tcp };
        let stop = Stop::after(limit.map(|limit| limit + GRACE));
        let stream = streams.acquire(&stop)?;
        match stream.call(request, body, &stop) {
            Ok(reply) => {
                streams.release(stream);
                Ok(reply)
            }
            Err(error) => {
                self.check()?;
                Err(error.of(&self.descriptor.name))
            }
        }
    }

    fn call_with_descriptors(
        &self,
        request: &Request,
        body: &[u8],
        limit: Option<Duration>,
    ) -> Result<(Reply, Vec<u8>, Vec<OwnedFd>), DataError> {
        self.check()?;
        let stop = Stop::after(limit.map(|limit| limit + GRACE));
        let control = lock(&self.control);
        let called = exchange(&control, request, body, &stop);
        drop(control);
        called.map_err(|error| {
            // A late reply would be taken for the reply to the next request, so the link is closed.
            let error = error.of(&self.descriptor.name);
            self.mark_dead(&error.to_string());
            error
        })
    }

    /// Sends a request to a transport of the other side, which is selected by name.
    ///
    /// # Errors
    /// The process has died, does not have the transport, or the transport refused the request.
    pub fn exchange(
        &self,
        name: &str,
        payload: &[u8],
        limit: Option<Duration>,
    ) -> Result<Vec<u8>, DataError> {
        let body = [name.as_bytes(), payload].concat();
        let slot = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let length = body.len() as u64;
        let request = Request { length, ..Request::of(Verb::Exchange, slot, 0) };
        let (reply, response) = self.call_on_stream(&request, &body, limit)?;
        if reply.status == Status::Done {
            return Ok(response);
        }
        let why = String::from_utf8_lossy(&response).into_owned();
        Err(DataError::Refused { name: self.descriptor.name.clone(), why })
    }

    /// The memory of an arena segment, which is mapped once.
    pub(crate) fn segment(&self, number: u32) -> Result<Arc<SharedMap>, DataError> {
        let local_peer = self.local_peer.as_ref().map_err(|why| no_arena(why.clone()))?;
        if let Some(map) = lock(&local_peer.maps).get(&number) {
            return Ok(Arc::clone(map));
        }
        let request = Request::of(Verb::Segment, number, 0);
        let (reply, why, fds) = self.call_with_descriptors(&request, &[], Some(HELLO_LIMIT))?;
        let Some(fd) = fds.into_iter().next().filter(|_| reply.status == Status::Done) else {
            return Err(no_arena(String::from_utf8_lossy(&why).into_owned()));
        };
        let len = usize::try_from(reply.value).unwrap_or(usize::MAX);
        let map = SharedMap::open(fd, len, true).map_err(|error| no_arena(error.to_string()))?;
        let map = Arc::clone(lock(&local_peer.maps).entry(number).or_insert_with(|| Arc::new(map)));
        Ok(map)
    }
}

impl LocalPeer {
    /// Presents the secret, and receives the shared memory.
    fn hello(
        socket: &Socket,
        descriptor: &PeerDescriptor,
        stop: &Stop,
    ) -> Result<Self, SocketError> {
        let cells = Cells::create()?;
        let process = AttachedProcess::open(peer_credentials(socket.as_fd())?.pid()?)?;
        socket.send_with(&hello(descriptor).encode(), &[cells.map().as_fd()])?;
        let (reply, fds) = socket.receive_reply_with(Some(stop))?;
        let mut body = vec![0; reply.length as usize];
        socket.receive(&mut body, Some(stop))?;
        let proof = body.try_into().map(u64::from_le_bytes);
        let (Status::Done, Ok(proof), Some(fd)) = (reply.status, proof, fds.into_iter().next())
        else {
            return Err(SocketError::Strange);
        };
        let ledger = Ledger::open(fd)?;
        let attach_refusal = try_attach(&process, proof);
        if attach_refusal.is_some() && process.is_over() {
            // It has exited since it replied.
            return Err(SocketError::Closed);
        }
        Ok(Self { cells, ledger, process, attach_refusal, maps: Mutex::default() })
    }
}

/// Reads the first word of the ledger, which is mapped here, from the memory of the process.
fn try_attach(process: &AttachedProcess, proof: u64) -> Option<String> {
    let mut word = [0_u8; 8];
    let to = Span { start: word.as_mut_ptr() as usize, len: word.len() };
    // SAFETY: the word is a local variable, which remains valid during the call.
    match unsafe { process.read(to, proof) } {
        Ok(8) => None,
        Ok(_) => Some("a word of it could be read in part only".to_owned()),
        Err(error) => Some(refusal(&error)),
    }
}

/// Connects to the local socket of a process. The listener must belong to this user, because it
/// receives the secret.
pub(crate) fn unix_socket(descriptor: &PeerDescriptor, stop: &Stop) -> Result<Socket, SocketError> {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
    let socket = Socket::open(fd.map_err(io::Error::from)?);
    socket.wait_in_ticks()?;
    let name = descriptor.socket_name();
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(io::Error::from)?;
    loop {
        match connect(socket.as_fd(), &address) {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            // The backlog of the listener is full.
            Err(Errno::AGAIN) => stop.check_waiting().map_err(SocketError::Stopped)?,
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    let peer = peer_credentials(socket.as_fd())?;
    if peer.is_this_user() {
        return Ok(socket);
    }
    Err(SocketError::Unproven(format!("a process of another user, {}, listens there", peer.uid)))
}

/// Translates the error of a connection to the local socket of a process.
pub(crate) fn unreachable(error: SocketError, descriptor: &PeerDescriptor) -> DataError {
    match error {
        SocketError::System(error) if is_of_exited_process(&error) => {
            let why = "it has ended".to_owned();
            DataError::PeerDied { name: descriptor.name.clone(), why }
        }
        SocketError::System(error) => {
            DataError::system("cannot connect to a socket of this machine")(error)
        }
        error => error.of(&descriptor.name),
    }
}

/// Whether the process had exited before the connection was made, or exits while it is made.
fn is_of_exited_process(error: &io::Error) -> bool {
    // The socket listens as long as the process lives. If it exits after that, no process has its
    // pid any more.
    error.kind() == io::ErrorKind::ConnectionRefused || error.raw_os_error() == Some(libc::ESRCH)
}

pub(crate) fn exchange(
    socket: &Socket,
    request: &Request,
    body: &[u8],
    stop: &Stop,
) -> Result<(Reply, Vec<u8>, Vec<OwnedFd>), SocketError> {
    let body = Span { start: body.as_ptr() as usize, len: body.len() };
    socket.send_request(request, body, Some(stop))?;
    let (reply, fds) = socket.receive_reply_with(Some(stop))?;
    let mut bytes = vec![0; reply.length as usize];
    socket.receive(&mut bytes, Some(stop))?;
    Ok((reply, bytes, fds))
}

fn no_arena(why: String) -> DataError {
    DataError::TransportUnavailable { transport: "arena", why }
}

#[cfg(test)]
mod tests {
    use super::is_of_exited_process;
    use crate::copy::attach::AttachedProcess;
    use rustix::process::Pid;
    use std::io;
    use std::process::Command;

    #[test]
    fn the_error_for_an_exited_process_is_recognized() {
        let mut child = Command::new("true").spawn().expect("there is a program `true`");
        let pid = Pid::from_child(&child);
        child.wait().expect("a child can be waited for");
        let error = AttachedProcess::open(pid).expect_err("the child has exited");
        assert!(is_of_exited_process(&error), "{error}");
        assert!(!is_of_exited_process(&io::Error::from_raw_os_error(libc::EMFILE)));
    }
}
