//! A listener on loopback, and its clients.
#![allow(dead_code, reason = "each file of tests uses some of it")]

use mesh_runtime::engine::channel::Channel;
use mesh_runtime::engine::listener::{
    AcceptedConnection, GreetingHandler, Listener, ListenerLimits,
};
use mesh_trust::{Authority, Role, Trust};
use mesh_wire::codec::MAGIC;
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind, UNKNOWN_PROC};
use mesh_wire::id::{Address, JobId, PortId, ProcId};
use rustix::fd::AsFd;
use rustls_pki_types::UnixTime;
use std::io::{self, IoSlice, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than any test takes: a wait of this length has timed out.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Returns the credentials of a worker and of a controller of one job.
pub(crate) fn members() -> (Trust, Trust) {
    let day = Duration::from_secs(86_400);
    let authority =
        Authority::create(JobId([7; 16]), day, UnixTime::now()).expect("a day is a good lifetime");
    let member = |role| {
        let identity = authority.issue(role, "someone", UnixTime::now());
        identity.and_then(|one| Trust::new(&one, &Role::ALL)).expect("the keys are good")
    };
    (member(Role::Worker), member(Role::Controller))
}

struct ChannelHandler(Mutex<Sender<AcceptedConnection>>);

impl GreetingHandler for ChannelHandler {
    fn handle_greeting(&self, connection: AcceptedConnection) {
        let sent = self.0.lock().expect("nobody panics here").send(connection);
        sent.expect("the test still waits");
    }
}

/// A listener that hands over connections with a greeting.
pub(crate) struct TestListener {
    pub(crate) listener: Arc<Listener>,
    pub(crate) at: SocketAddr,
    pub(crate) accepted: Receiver<AcceptedConnection>,
}

impl TestListener {
    pub(crate) fn open(trust: Trust, limits: ListenerLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let at = listener.local_addr().expect("it is bound");
        // The default queue of the kernel is short, and drops connections that arrive together.
        rustix::net::listen(&listener, 4096).expect("it listens already");
        let listener =
            Listener::open_with(listener.into(), trust, limits).expect("there are threads");
        let (sender, accepted) = channel();
        listener.refuse(bare(Kind::Attached));
        listener.admit(Arc::new(ChannelHandler(Mutex::new(sender))));
        Self { listener, at, accepted }
    }

    /// Connects with credentials of the job.
    pub(crate) fn connect(&self, trust: &Trust) -> io::Result<Channel> {
        Channel::connect(&[self.at], trust, Instant::now() + LIMIT)
    }

    /// Whether a new connection with a greeting is handed over.
    pub(crate) fn serves(&self, trust: &Trust) -> bool {
        let Ok(mut channel) = self.connect(trust) else { return false };
        channel.send(&bare(Kind::Hello), Instant::now() + LIMIT).is_ok()
            && self.accepted.recv_timeout(LIMIT).is_ok()
    }
}

impl Drop for TestListener {
    fn drop(&mut self) {
        self.listener.close();
    }
}

/// Returns a frame of the program that runs the job, with nothing but its kind.
pub(crate) fn bare(kind: Kind) -> Frame {
    let from = |proc| Address { proc, port: PortId::NONE };
    Frame::bare(Head::new(kind, from(UNKNOWN_PROC), from(ProcId::new(0, 0))))
}

/// Returns the head of a frame that announces a tail of the given length.
pub(crate) fn head(kind: Kind, tail_len: usize) -> [u8; HEAD_LEN] {
    let encoded = bare(kind).head.encode(tail_len);
    assert_eq!(encoded[0], MAGIC);
    encoded
}

/// Sends raw bytes, encrypted if the channel is.
pub(crate) fn send_raw(channel: &mut Channel, bytes: &[u8]) {
    let sealed = match &mut channel.secure {
        None => bytes.to_vec(),
        Some(secure) => {
            let taken = secure.sealer.write(&[IoSlice::new(bytes)]);
            assert_eq!(taken, Ok(bytes.len()), "it fits");
            let pending = secure.sealer.pending().to_vec();
            secure.sealer.sent(pending.len());
            pending
        }
    };
    let flags = rustix::net::SendFlags::NOSIGNAL;
    let sent = rustix::net::send(&channel.stream, &sealed, flags);
    assert_eq!(sent, Ok(sealed.len()), "the socket takes it at once");
}

/// Waits until the other side has closed the connection, and drops everything it sends before.
pub(crate) fn wait_closed(stream: impl AsFd) {
    let stream = stream.as_fd().try_clone_to_owned().expect("there are descriptors");
    let mut stream = TcpStream::from(stream);
    stream.set_nonblocking(false).expect("it is a socket");
    stream.set_read_timeout(Some(LIMIT)).expect("it is a socket");
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return,
            Err(error) => panic!("it was not closed: {error}"),
        }
    }
}

/// Returns a memory size of this process in bytes: resident (`VmRSS:`) or virtual (`VmSize:`).
pub(crate) fn memory_len(what: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.expect("a number of kilobytes") << 10
}
