//! The gateway: forwards bytes between a client and a host that the client cannot reach directly.
//!
//! The client has authenticated at this worker's listener. Everything that it sends from then on is
//! for the other host, with which it performs another handshake: the gateway learns the peers,
//! amounts and times of the traffic, but has no key to its content.

use super::channel::{Channel, give_up_soon};
use super::dial::{Route, connected, resolved};
use super::listener::Caller;
use super::parker::timespec;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Head, Kind, NOBODY};
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
pub(super) const THROUGH: u8 = 2;
/// Flag of a reply that is a refusal.
pub(super) const REFUSED: u8 = 1;

/// Connections that one worker forwards at a time; each has a thread.
const RELAYS_MAX: usize = 1024;
/// The time limit for the other host to accept the connection.
const REACH_MAX: Duration = Duration::from_secs(5);
/// Size in bytes of the buffer of each direction.
const BUFFER_LEN: usize = 256 << 10;
/// Reads and writes of one direction before the other direction gets its turn.
const STEPS_MAX: usize = 16;
/// The interval at which both connections are checked if no event occurs.
const LOOK: Duration = Duration::from_secs(10);

/// The forwarded connections of a worker.
#[derive(Debug, Default)]
pub(super) struct Relays(Arc<AtomicUsize>);

impl Relays {
    /// Forwards a caller to its target, from a dedicated thread.
    pub(super) fn begin(&self, caller: Caller) {
        if self.0.fetch_add(1, Ordering::SeqCst) >= RELAYS_MAX {
            self.0.fetch_sub(1, Ordering::SeqCst);
            let text = format!("it already relays {RELAYS_MAX} connections: use another gateway");
            // A caller that does not receive the reply is not notified.
            let _ = caller.reply(&reply_frame(REFUSED, text));
            return;
        }
        let running = Running(Arc::clone(&self.0));
        let thread = std::thread::Builder::new().name("mesh-relay".into()).stack_size(256 << 10);
        // If no thread is available the caller is dropped, and tries again.
        let _ = thread.spawn(move || {
            let _running = running;
            serve(caller);
        });
    }
}

/// Counts one connection while it exists.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn serve(caller: Caller) {
    let target = reach(&caller.first.tail);
    let said = match &target {
        Ok(_) => caller.reply(&reply_frame(0, String::new())),
        Err(error) => caller.reply(&reply_frame(REFUSED, error.to_string())),
    };
    if let (Ok(target), Ok(())) = (target, said) {
        let (channel, _) = caller.into_channel();
        // The reason for an end does not matter: both sides notice it.
        let _ = pass_on(&channel.stream, &target);
    }
}

fn reach(target: &[u8]) -> io::Result<OwnedFd> {
    let text = std::str::from_utf8(target).map_err(io::Error::other)?;
    let names: Vec<String> = text.lines().map(str::to_owned).collect();
    connected(&resolved(&names)?, Instant::now() + REACH_MAX)
}

fn reply_frame(flags: u8, text: String) -> Frame {
    let nobody = Address { proc: NOBODY, port: PortId::NONE };
    let mut head = Head::new(Kind::Attached, nobody, nobody);
    head.flags = flags;
    Frame { head, tail: text.into() }
}

/// Requests a connection to the target of a route from its gateway.
///
/// # Errors
/// If the gateway cannot be reached or refuses, or the host behind it cannot be reached.
pub(super) fn ask(route: &Route, trust: &Trust, until: Instant) -> io::Result<OwnedFd> {
    let gateway = route.gateway.join(", ");
    let failed = |error: io::Error| {
        io::Error::new(error.kind(), format!("the gateway {gateway} cannot be reached: {error}"))
    };
    let addresses: Vec<SocketAddr> = resolved(&route.gateway).map_err(failed)?;
    let mut channel = Channel::connect(&addresses, trust, until).map_err(failed)?;
    channel.expect(Role::Worker).map_err(failed)?;
    let nobody = Address { proc: NOBODY, port: PortId::NONE };
    let mut head = Head::new(Kind::Attach, nobody, nobody);
    head.flags = THROUGH;
    channel.send(&Frame { head, tail: route.addresses.join("\n").into() }, until)?;
    let reply = channel.first(&[Kind::Attached], until).map_err(failed)?;
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
    fn wants(&self) -> Option<PollFd<'a>> {
        match (self.is_over, self.waiting.is_empty()) {
            (true, _) => None,
            (false, true) => Some(PollFd::new(self.from, PollFlags::IN)),
            (false, false) => Some(PollFd::new(self.to, PollFlags::OUT)),
        }
    }
}

/// Forwards bytes in both directions until both have ended or one is broken.
fn pass_on(one: &OwnedFd, other: &OwnedFd) -> io::Result<()> {
    for stream in [one, other] {
        rustix::io::ioctl_fionbio(stream, true)?;
        give_up_soon(stream)?;
    }
    let mut flows = [Flow::new(one, other), Flow::new(other, one)];
    loop {
        for flow in &mut flows {
            flow.advance()?;
        }
        let mut wants: Vec<PollFd<'_>> = flows.iter().filter_map(Flow::wants).collect();
        if wants.is_empty() {
            return Ok(());
        }
        match poll(&mut wants, Some(&timespec(LOOK))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
