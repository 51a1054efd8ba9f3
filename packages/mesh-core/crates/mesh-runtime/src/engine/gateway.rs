//! The gateway: forwards bytes between a client and a host that the client cannot reach directly.
//!
//! The client has authenticated at this worker's listener. Everything that it sends from then on is
//! for the other host, with which it performs another handshake: the gateway learns the peers,
//! amounts and times of the traffic, but has no key to its content.

use super::channel::{Channel, set_failure_timeouts};
use super::dial::{Route, connect_any, resolve};
use super::listener::AcceptedConnection;
use super::parker::timespec;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Head, Kind, UNKNOWN_PROC};
use mesh_wire::id::{Address, PortId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Flag of a request that has to be forwarded to another host.
pub(super) const FORWARD: u8 = 2;
/// Flag of a reply that is a refusal.
pub(super) const REFUSED: u8 = 1;

/// Connections that one worker forwards at a time; each has a thread.
const FORWARDS_MAX: usize = 1024;
/// The time limit for the other host to accept the connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Size in bytes of the buffer of each direction.
const BUFFER_LEN: usize = 256 << 10;
/// Reads and writes of one direction before the other direction gets its turn.
const STEPS_MAX: usize = 16;
/// The interval at which both connections are checked if no event occurs.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The forwarded connections of a worker.
#[derive(Debug, Default)]
pub(super) struct Forwarder(Arc<AtomicUsize>);

impl Forwarder {
    /// Forwards a caller to its target, from a dedicated thread.
    pub(super) fn begin(&self, client: AcceptedConnection) {
        if self.0.fetch_add(1, Ordering::SeqCst) >= FORWARDS_MAX {
            self.0.fetch_sub(1, Ordering::SeqCst);
            let text =
                format!("it already forwards {FORWARDS_MAX} connections: use another gateway");
            // A caller that does not receive the reply is not notified.
            let _ = client.reply(&reply_frame(REFUSED, text));
            return;
        }
        let active = ActiveForward(Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("mesh-relay".into()).stack_size(256 << 10);
        // If no thread is available the caller is dropped, and tries again.
        let _ = thread.spawn(move || {
            let _active = active;
            forward(client);
        });
    }
}

/// Counts one connection while it exists.
struct ActiveForward(Arc<AtomicUsize>);

impl Drop for ActiveForward {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn forward(client: AcceptedConnection) {
    let target = connect_target(&client.first.tail);
    let sent = match &target {
        Ok(_) => client.reply(&reply_frame(0, String::new())),
        Err(error) => client.reply(&reply_frame(REFUSED, error.to_string())),
    };
    if let (Ok(target), Ok(())) = (target, sent) {
        let (channel, _) = client.into_channel();
        // The reason for an end does not matter: both sides notice it.
        let _ = forward_bytes(&channel.stream, &target);
    }
}

fn connect_target(target: &[u8]) -> io::Result<OwnedFd> {
    let text = std::str::from_utf8(target).map_err(io::Error::other)?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    connect_any(&resolve(&names)?, Instant::now() + CONNECT_MAX)
}

fn reply_frame(flags: u8, text: String) -> Frame {
    let unknown = Address { proc: UNKNOWN_PROC, port: PortId::NONE };
    let mut head = Head::new(Kind::Attached, unknown, unknown);
    head.flags = flags;
    Frame { head, tail: text.into() }
}

/// Requests a connection to the target of a route from its gateway.
///
/// # Errors
/// If the gateway cannot be reached or refuses, or the host behind it cannot be reached.
pub(super) fn connect_through(route: &Route, trust: &Trust, until: Instant) -> io::Result<OwnedFd> {
    let gateway = route.gateway.join(", ");
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("the gateway {gateway} cannot be reached: {error}"))
    };
    let addresses: Vec<SocketAddr> = resolve(&route.gateway).map_err(failed)?;
    let mut channel = Channel::connect(&addresses, trust, until).map_err(failed)?;
    channel.expect(Role::Worker).map_err(failed)?;
    let unknown = Address { proc: UNKNOWN_PROC, port: PortId::NONE };
    let mut head = Head::new(Kind::Attach, unknown, unknown);
    head.flags = FORWARD;
    channel.send(&Frame { head, tail: route.addresses.join("\n").into() }, until)?;
    let reply = channel.receive_first(&[Kind::Attached], until).map_err(failed)?;
    if reply.head.flags & REFUSED != 0 {
        let why = String::from_utf8_lossy(&reply.tail);
        return Err(io::Error::other(format!("from the gateway {gateway}: {why}")));
    }
    Ok(channel.stream)
}

/// One direction: the bytes that were read and not yet written.
struct Flow<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    buffer: Box<[u8]>,
    /// The range of the buffer that waits to be written.
    waiting: std::ops::Range<usize>,
    /// Nothing more will be read.
    is_read: bool,
    /// Nothing more will be written, and the other side is notified.
    is_over: bool,
}

impl<'a> Flow<'a> {
    fn new(from: &'a OwnedFd, to: &'a OwnedFd) -> Self {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Self { from, to, buffer, waiting: 0..0, is_read: false, is_over: false }
    }

    /// Moves as many bytes as possible now.
    fn advance(&mut self) -> io::Result<()> {
        for _ in 0..STEPS_MAX {
            if self.is_over {
                break;
            }
            if self.waiting.is_empty() {
                if self.is_read {
                    self.is_over = true;
                    // The other direction may still have bytes to send.
                    let _ = rustix::net::shutdown(self.to, Shutdown::Write);
                    break;
                }
                match rustix::net::recv(self.from, &mut *self.buffer, RecvFlags::empty()) {
                    Ok((0, _)) => self.is_read = true,
                    Ok((len, _)) => self.waiting = 0..len,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            } else {
                let bytes = &self.buffer[self.waiting.clone()];
                match rustix::net::send(self.to, bytes, SendFlags::NOSIGNAL) {
                    Ok(sent) => self.waiting.start += sent,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Returns the event that this direction waits for.
    fn poll_fd(&self) -> Option<PollFd<'a>> {
        match (self.is_over, self.waiting.is_empty()) {
            (true, _) => None,
            (false, true) => Some(PollFd::new(self.from, PollFlags::IN)),
            (false, false) => Some(PollFd::new(self.to, PollFlags::OUT)),
        }
    }
}

/// Forwards bytes in both directions until both have ended or one is broken.
fn forward_bytes(one: &OwnedFd, other: &OwnedFd) -> io::Result<()> {
    for stream in [one, other] {
        rustix::io::ioctl_fionbio(stream, true)?;
        set_failure_timeouts(stream)?;
    }
    let mut flows = [Flow::new(one, other), Flow::new(other, one)];
    loop {
        for flow in &mut flows {
            flow.advance()?;
        }
        let mut poll_fds: Vec<PollFd<'_>> = flows.iter().filter_map(Flow::poll_fd).collect();
        if poll_fds.is_empty() {
            return Ok(());
        }
        match poll(&mut poll_fds, Some(&timespec(CHECK_INTERVAL))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
