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
use super::gateway::{Relays, THROUGH};
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
const PROGRAM: HostId = HostId(0);
/// The default maximum number of pending connections, unless there are too few descriptors.
const CALLERS_MAX: usize = 1024;
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
    pub callers_max: usize,
}

impl Default for ListenerLimits {
    /// Returns ten seconds and 1024 connections, or fewer if descriptors are scarce.
    ///
    /// Pending connections get at most a quarter of the descriptors of the process.
    fn default() -> Self {
        let share = getrlimit(Resource::Nofile).current.map(|all| all / DESCRIPTORS_SHARE);
        let share = share.and_then(|share| usize::try_from(share).ok()).unwrap_or(CALLERS_MAX);
        Self { first_frame_max: FIRST_FRAME_MAX, callers_max: share.clamp(1, CALLERS_MAX) }
    }
}

/// An authenticated connection whose first frame has arrived.
#[derive(Debug)]
pub struct Caller {
    channel: Mutex<Channel>,
    /// The address of the peer.
    pub address: Option<SocketAddr>,
    /// Its first frame.
    pub first: Frame,
}

impl Caller {
    /// Sends one frame back; the connection closes when the caller is dropped.
    ///
    /// # Errors
    /// If the peer does not receive it in time, or is gone.
    pub fn reply(&self, frame: &Frame) -> io::Result<()> {
        lock(&self.channel).send(frame, Instant::now() + REPLY_TIMEOUT)
    }

    /// Like [`Caller::reply`] without waiting: if the socket has no room, the reply is dropped.
    fn reply_nowait(&self, frame: &Frame) {
        let _ = lock(&self.channel).send(frame, Instant::now());
    }

    /// Returns the role in the certificate of the peer.
    pub fn role(&self) -> Option<Role> {
        lock(&self.channel).role()
    }

    /// Whether the certificate of the peer permits the host in its greeting.
    fn is_what_it_says(&self) -> bool {
        let is_program = self.first.head.from.proc.host == PROGRAM;
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
    fn greeted(&self, caller: Caller);
}

#[derive(Default)]
struct Inside {
    handler: Option<Arc<dyn GreetingHandler>>,
    requests: VecDeque<Caller>,
    /// The reply to later requests for a worker that is in use.
    refusal: Option<Frame>,
}

/// A listening socket and its pending connections.
pub struct Listener {
    inside: Mutex<Inside>,
    has_request: Condvar,
    is_closed: AtomicBool,
    waker: Waker,
    relays: Relays,
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
            inside: Mutex::default(),
            has_request: Condvar::new(),
            is_closed: AtomicBool::new(false),
            waker: Waker::new()?,
            relays: Relays::default(),
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
    /// Earlier greetings get the reply that the process is gone.
    ///
    /// Requests continue to wait for [`Listener::next_request`].
    pub fn admit(&self, handler: Arc<dyn GreetingHandler>) {
        lock(&self.inside).handler = Some(handler);
    }

    /// Replies with `refusal` to waiting and later requests for this worker.
    pub fn refuse(&self, refusal: Frame) {
        let mut inside = lock(&self.inside);
        for late in inside.requests.drain(..) {
            late.reply_nowait(&refusal);
        }
        inside.refusal = Some(refusal);
    }

    /// Waits for the next request for this worker.
    pub fn next_request(&self, limit: Duration) -> Option<Caller> {
        let inside = lock(&self.inside);
        let waited = self.has_request.wait_timeout_while(inside, limit, |inside| {
            inside.requests.is_empty() && !self.is_closed.load(Ordering::SeqCst)
        });
        let (mut inside, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inside.requests.pop_front()
    }

    /// Stops listening.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.waker.ring();
        self.has_request.notify_all();
    }

    fn pass(&self, caller: Caller) {
        if caller.first.head.kind == Kind::Attach && caller.first.head.flags & THROUGH != 0 {
            return self.relays.begin(caller);
        }
        let mut inside = lock(&self.inside);
        if caller.first.head.kind == Kind::Attach {
            match &inside.refusal {
                Some(refusal) => caller.reply_nowait(refusal),
                None if inside.requests.len() < REQUESTS_MAX => {
                    inside.requests.push_back(caller);
                    self.has_request.notify_one();
                }
                None => {}
            }
        } else if caller.is_what_it_says() {
            let handler = inside.handler.clone();
            drop(inside);
            match (handler, gone_reply(&caller.first)) {
                (Some(handler), _) => handler.greeted(caller),
                (None, Some(reply)) => caller.reply_nowait(&reply),
                (None, None) => {}
            }
        }
    }
}

/// Requests that the worker at the end of a route serves a job, and waits for its reply.
///
/// # Errors
/// If no reply arrives in time, or the peer is not a worker of this job.
pub fn ask(route: &Route, trust: &Trust, request: &Frame, limit: Duration) -> io::Result<Frame> {
    let until = Instant::now() + limit;
    let mut channel = Channel::by(route, trust, until)?;
    channel.expect(Role::Worker)?;
    let sent = channel.send(request, until);
    let reply = sent.and_then(|()| channel.first(&[Kind::Attached], until));
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
