//! The listener for other hosts, which authenticates connections before it passes them on.
//!
//! A pending connection is one whose first frame has not arrived yet. One thread, the accept
//! loop, serves all of them. They are bounded in number, time and memory, so a client that can
//! reach the port can keep that thread busy and nothing else. If the first frame is a greeting,
//! the connection becomes a connection of the engine. If it requests that the worker serves a
//! job, the owner of the listener decides. If it requests a connection to another host, it is
//! forwarded.

mod accept_loop;
mod pending_connections;

use super::channel::Channel;
use super::dial::Route;
use super::gateway::{FORWARD, Forwarder};
use super::parker::Waker;
use super::wire::lock;
use crate::node::gone_reply;
use accept_loop::AcceptLoop;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::HostId;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The default time limit for the first frame of a connection.
const FIRST_FRAME_MAX: Duration = Duration::from_secs(10);
/// The host of the program that runs the job: only its processes are controllers.
const CONTROLLER_HOST: HostId = HostId(0);
/// The default maximum number of pending connections, unless there are too few descriptors.
const PENDING_MAX: usize = 1024;
/// Pending connections get one part in so many of the descriptors of the process.
const DESCRIPTORS_SHARE: u64 = 4;
/// The time limit for sending a reply to a caller.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of requests to serve a job that wait for a reply.
const REQUESTS_MAX: usize = 16;

/// Limits for pending connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerLimits {
    /// The time limit from the connection to the end of the first frame, including authentication.
    pub first_frame_max: Duration,
    /// The maximum number of pending connections; if there are more, one of them is closed.
    pub pending_max: usize,
}

impl Default for ListenerLimits {
    /// Returns ten seconds and 1024 connections, or fewer if descriptors are scarce.
    ///
    /// Pending connections get at most a quarter of the descriptors of the process.
    fn default() -> Self {
        let share = getrlimit(Resource::Nofile).current.map(|all| all / DESCRIPTORS_SHARE);
        let share = share.and_then(|share| usize::try_from(share).ok()).unwrap_or(PENDING_MAX);
        Self { first_frame_max: FIRST_FRAME_MAX, pending_max: share.clamp(1, PENDING_MAX) }
    }
}

/// An authenticated connection whose first frame has arrived.
#[derive(Debug)]
pub struct AcceptedConnection {
    channel: Mutex<Channel>,
    /// The address of the peer.
    pub address: Option<SocketAddr>,
    /// Its first frame.
    pub first: Frame,
}

impl AcceptedConnection {
    /// Sends one frame back; the connection closes when the caller is dropped.
    ///
    /// # Errors
    /// If the peer does not receive it in time, or has exited.
    pub fn reply(&self, frame: &Frame) -> io::Result<()> {
        lock(&self.channel).send(frame, Instant::now() + REPLY_TIMEOUT)
    }

    /// Like [`AcceptedConnection::reply`] without waiting.
    ///
    /// If the send buffer of the socket is full, the reply is dropped.
    fn reply_nowait(&self, frame: &Frame) {
        let _ = lock(&self.channel).send(frame, Instant::now());
    }

    /// Returns the role in the certificate of the peer.
    pub fn role(&self) -> Option<Role> {
        lock(&self.channel).role()
    }

    /// Whether the certificate of the peer permits the host in its greeting.
    fn has_required_role(&self) -> bool {
        let is_program = self.first.head.from.proc.host == CONTROLLER_HOST;
        let needed = if is_program { Role::Controller } else { Role::Worker };
        self.role() == Some(needed)
    }

    /// Returns the connection and its first frame.
    pub fn into_channel(self) -> (Channel, Frame) {
        (self.channel.into_inner().unwrap_or_else(PoisonError::into_inner), self.first)
    }
}

/// The handler of greetings.
pub trait GreetingHandler: Send + Sync {
    /// Handles a greeting of a process of the job, and takes over its connection.
    fn handle_greeting(&self, connection: AcceptedConnection);
}

#[derive(Default)]
struct State {
    handler: Option<Arc<dyn GreetingHandler>>,
    requests: VecDeque<AcceptedConnection>,
    /// The reply to later requests for a worker that is in use.
    refusal: Option<Frame>,
}

/// A listening socket and its pending connections.
pub struct Listener {
    state: Mutex<State>,
    has_request: Condvar,
    is_closed: AtomicBool,
    waker: Waker,
    forwarder: Forwarder,
}

impl Listener {
    /// Serves a listening socket from a dedicated thread; peers authenticate with `trust`.
    ///
    /// # Errors
    /// If the machine has no descriptors or threads left.
    pub fn open(socket: OwnedFd, trust: Trust) -> io::Result<Arc<Self>> {
        Self::open_with(socket, trust, ListenerLimits::default())
    }

    /// Like [`Listener::open`], with other limits.
    ///
    /// # Errors
    /// As [`Listener::open`].
    pub fn open_with(
        socket: OwnedFd,
        trust: Trust,
        limits: ListenerLimits,
    ) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let listener = Arc::new(Self {
            state: Mutex::default(),
            has_request: Condvar::new(),
            is_closed: AtomicBool::new(false),
            waker: Waker::new()?,
            forwarder: Forwarder::default(),
        });
        let mut accept_loop = AcceptLoop::new(Arc::clone(&listener), socket, trust, limits)?;
        std::thread::Builder::new()
            .name("mesh-listener".into())
            .stack_size(256 << 10)
            .spawn(move || accept_loop.run())?;
        Ok(listener)
    }

    /// Passes greetings to `handler` from now on.
    ///
    /// Earlier greetings get the reply that the process has exited.
    ///
    /// Requests continue to wait for [`Listener::next_request`].
    pub fn admit(&self, handler: Arc<dyn GreetingHandler>) {
        lock(&self.state).handler = Some(handler);
    }

    /// Replies with `refusal` to waiting and later requests for this worker.
    pub fn refuse(&self, refusal: Frame) {
        let mut state = lock(&self.state);
        for request in state.requests.drain(..) {
            request.reply_nowait(&refusal);
        }
        state.refusal = Some(refusal);
    }

    /// Waits for the next request for this worker.
    pub fn next_request(&self, limit: Duration) -> Option<AcceptedConnection> {
        let state = lock(&self.state);
        let waited = self.has_request.wait_timeout_while(state, limit, |state| {
            state.requests.is_empty() && !self.is_closed.load(Ordering::SeqCst)
        });
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.requests.pop_front()
    }

    /// Stops listening.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.waker.wake();
        self.has_request.notify_all();
    }

    fn dispatch(&self, connection: AcceptedConnection) {
        if connection.first.head.kind == Kind::Attach && connection.first.head.flags & FORWARD != 0
        {
            return self.forwarder.begin(connection);
        }
        let mut state = lock(&self.state);
        if connection.first.head.kind == Kind::Attach {
            match &state.refusal {
                Some(refusal) => connection.reply_nowait(refusal),
                None if state.requests.len() < REQUESTS_MAX => {
                    state.requests.push_back(connection);
                    self.has_request.notify_one();
                }
                None => {}
            }
        } else if connection.has_required_role() {
            let handler = state.handler.clone();
            drop(state);
            match (handler, gone_reply(&connection.first)) {
                (Some(handler), _) => handler.handle_greeting(connection),
                (None, Some(reply)) => connection.reply_nowait(&reply),
                (None, None) => {}
            }
        }
    }
}

/// Requests that the worker at the end of a route serves a job, and waits for its reply.
///
/// # Errors
/// If no reply arrives in time, or the peer is not a worker of this job.
pub fn request_attach(
    route: &Route,
    trust: &Trust,
    request: &Frame,
    limit: Duration,
) -> io::Result<Frame> {
    let until = Instant::now() + limit;
    let mut channel = Channel::connect_route(route, trust, until)?;
    channel.expect(Role::Worker)?;
    let sent = channel.send(request, until);
    let reply = sent.and_then(|()| channel.receive_first(&[Kind::Attached], until));
    reply.map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::TimedOut => "it accepts connections but does not reply",
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::InvalidData => "it closed the connection",
            _ => return error,
        };
        let text = format!("{what}: it is not a worker, or requires credentials of its job");
        io::Error::new(error.kind(), text)
    })
}
