//! Where other hosts knock: who they are is found out here, before anything of theirs goes further.
//!
//! A caller is a connection that has not yet sent its first frame. All of them together are served
//! by one thread, the `porch`, and bounded in number, time and memory, so whoever can reach the
//! port can keep that thread busy and nothing else. A first frame is a greeting, and then the
//! connection becomes a link of the engine; or it asks the worker to serve a job, and then whoever
//! has opened the gate decides; or it asks for a way to another host, and then it is passed on.

mod crowd;
mod porch;

use super::channel::Channel;
use super::dial::Route;
use super::gateway::{Relays, THROUGH};
use super::parker::Bell;
use super::wire::lock;
use crate::node::gone;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::HostId;
use porch::Porch;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a caller may take until its first frame is there, unless the gate says otherwise.
const KNOCK_MAX: Duration = Duration::from_secs(10);
/// The host of the program that runs the job: its processes alone are controllers.
const PROGRAM: HostId = HostId(0);
/// Callers at a time, unless the gate says otherwise or there are too few descriptors.
const CALLERS_MAX: usize = 1024;
/// Of the descriptors that the process may have, callers get one part in so many.
const DESCRIPTORS_SHARE: u64 = 4;
/// How long whoever answers a caller waits for the socket.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Requests to serve a job that may wait for an answer.
const REQUESTS_MAX: usize = 16;

/// What callers may take of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateLimits {
    /// How long one may take from its connection to its whole first frame, proof and all.
    pub knock_max: Duration,
    /// How many may be there at a time; when there are more, somebody goes.
    pub callers_max: usize,
}

impl Default for GateLimits {
    /// Ten seconds, and 1024 callers or what a quarter of the process's descriptors is enough for.
    fn default() -> Self {
        let share = getrlimit(Resource::Nofile).current.map(|all| all / DESCRIPTORS_SHARE);
        let share = share.and_then(|share| usize::try_from(share).ok()).unwrap_or(CALLERS_MAX);
        Self { knock_max: KNOCK_MAX, callers_max: share.clamp(1, CALLERS_MAX) }
    }
}

/// A connection whose first frame has come.
#[derive(Debug)]
pub struct Caller {
    channel: Mutex<Channel>,
    /// Where it comes from.
    pub address: Option<SocketAddr>,
    /// Its first frame.
    pub first: Frame,
}

impl Caller {
    /// Sends one frame back; the connection closes when the caller is dropped.
    ///
    /// # Errors
    /// When the other side does not take it in time, or is gone.
    pub fn answer(&self, frame: &Frame) -> io::Result<()> {
        lock(&self.channel).send(frame, Instant::now() + ANSWER_MAX)
    }

    /// As [`Caller::answer`], without waiting: who has no room for an answer is told nothing.
    fn answer_nowait(&self, frame: &Frame) {
        let _ = lock(&self.channel).send(frame, Instant::now());
    }

    /// What its certificate says that it may be.
    pub fn role(&self) -> Option<Role> {
        lock(&self.channel).role()
    }

    /// Whether its certificate lets it be the host that it greets as.
    fn is_what_it_says(&self) -> bool {
        let is_program = self.first.head.from.proc.host == PROGRAM;
        let needed = if is_program { Role::Controller } else { Role::Worker };
        self.role() == Some(needed)
    }

    /// The connection.
    pub fn into_channel(self) -> (Channel, Frame) {
        (self.channel.into_inner().unwrap_or_else(PoisonError::into_inner), self.first)
    }
}

/// What becomes of callers.
pub trait Doorkeeper: Send + Sync {
    /// A process of the job greets; its connection is a link from now on.
    fn greeted(&self, caller: Caller);
}

#[derive(Default)]
struct Inside {
    keeper: Option<Arc<dyn Doorkeeper>>,
    requests: VecDeque<Caller>,
    /// What those are told who ask for a worker that is taken.
    refusal: Option<Frame>,
}

/// A listening socket and the callers at it.
pub struct Gate {
    inside: Mutex<Inside>,
    has_request: Condvar,
    is_closed: AtomicBool,
    bell: Bell,
    relays: Relays,
}

impl Gate {
    /// Serves a listening socket from a thread of its own; callers prove themselves to `trust`.
    ///
    /// # Errors
    /// When the machine has no descriptors or threads left.
    pub fn open(listener: OwnedFd, trust: Trust) -> io::Result<Arc<Self>> {
        Self::open_with(listener, trust, GateLimits::default())
    }

    /// As [`Gate::open`], with other limits.
    ///
    /// # Errors
    /// As [`Gate::open`].
    pub fn open_with(listener: OwnedFd, trust: Trust, limits: GateLimits) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let gate = Arc::new(Self {
            inside: Mutex::default(),
            has_request: Condvar::new(),
            is_closed: AtomicBool::new(false),
            bell: Bell::new()?,
            relays: Relays::default(),
        });
        let mut porch = Porch::new(Arc::clone(&gate), listener, trust, limits)?;
        std::thread::Builder::new()
            .name("mesh-gate".into())
            .stack_size(256 << 10)
            .spawn(move || porch.run())?;
        Ok(gate)
    }

    /// Lets greetings through from now on; before, who greets hears that nobody is there. Requests
    /// wait for [`Gate::next_request`] as before.
    pub fn admit(&self, keeper: Arc<dyn Doorkeeper>) {
        lock(&self.inside).keeper = Some(keeper);
    }

    /// Answers those with `refusal` who ask for this worker, from now on.
    pub fn refuse(&self, refusal: Frame) {
        let mut inside = lock(&self.inside);
        for late in inside.requests.drain(..) {
            late.answer_nowait(&refusal);
        }
        inside.refusal = Some(refusal);
    }

    /// Waits for somebody who asks for this worker.
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
        self.bell.ring();
        self.has_request.notify_all();
    }

    fn pass(&self, caller: Caller) {
        if caller.first.head.kind == Kind::Attach && caller.first.head.flags & THROUGH != 0 {
            return self.relays.begin(caller);
        }
        let mut inside = lock(&self.inside);
        if caller.first.head.kind == Kind::Attach {
            match &inside.refusal {
                Some(refusal) => caller.answer_nowait(refusal),
                None if inside.requests.len() < REQUESTS_MAX => {
                    inside.requests.push_back(caller);
                    self.has_request.notify_one();
                }
                None => {}
            }
        } else if caller.is_what_it_says() {
            let keeper = inside.keeper.clone();
            drop(inside);
            match (keeper, gone(&caller.first)) {
                (Some(keeper), _) => keeper.greeted(caller),
                (None, Some(answer)) => caller.answer_nowait(&answer),
                (None, None) => {}
            }
        }
    }
}

/// Asks the worker at the end of a route to serve a job, and waits for what it says.
///
/// # Errors
/// When nobody answers there in time, or what answers is no worker, or none of this job.
pub fn ask(route: &Route, trust: &Trust, request: &Frame, limit: Duration) -> io::Result<Frame> {
    let until = Instant::now() + limit;
    let mut channel = Channel::by(route, trust, until)?;
    channel.expect(Role::Worker)?;
    let sent = channel.send(request, until);
    let answer = sent.and_then(|()| channel.first(&[Kind::Attached], until));
    answer.map_err(|error| {
        let what = match error.kind() {
            io::ErrorKind::TimedOut => "it takes connections and does not answer",
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::InvalidData => "it closed the connection",
            _ => return error,
        };
        let text = format!("{what}: it is no worker, or wants credentials of its job");
        io::Error::new(error.kind(), text)
    })
}
