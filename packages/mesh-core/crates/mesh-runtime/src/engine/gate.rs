//! Where other hosts knock: who they are is found out here, before anything of theirs goes further.
//!
//! A caller is a connection that has not yet sent its first frame. All of them together are served
//! by one thread and bounded in number, time and memory, so whoever can reach the port can keep
//! that thread busy and nothing else. A first frame is a greeting, and then the connection becomes
//! a link of the engine; or it asks the worker to serve a job, and then whoever has opened the gate
//! decides.

use super::channel::{Channel, FirstFrame, try_receive};
use super::parker::{Bell, timespec};
use super::wire::lock;
use mesh_trust::{Handshake, Peer, Trust};
use mesh_wire::frame::{Frame, Kind};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SendFlags, SocketAddrAny, SocketFlags};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a caller may take until its first frame is there.
const KNOCK_MAX: Duration = Duration::from_secs(10);
/// Callers at a time; the one that has taken longest goes when there are more.
const CALLERS_MAX: usize = 1024;
/// How long whoever answers a caller waits for the socket.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Requests to serve a job that may wait for an answer.
const REQUESTS_MAX: usize = 16;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

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

    /// Who it is, where callers have to prove that.
    pub fn peer(&self) -> Option<Peer> {
        lock(&self.channel).secure.as_ref().map(|secure| secure.peer.clone())
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
}

impl Gate {
    /// Serves a listening socket from a thread of its own; callers prove themselves to `trust`.
    ///
    /// # Errors
    /// When the machine has no descriptors or threads left.
    pub fn open(listener: OwnedFd, trust: Option<Trust>) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let gate = Arc::new(Self {
            inside: Mutex::default(),
            has_request: Condvar::new(),
            is_closed: AtomicBool::new(false),
            bell: Bell::new()?,
        });
        let mut porch = Porch::new(Arc::clone(&gate), listener, trust)?;
        std::thread::Builder::new()
            .name("mesh-gate".into())
            .stack_size(256 << 10)
            .spawn(move || porch.run())?;
        Ok(gate)
    }

    /// Lets greetings through from now on; requests are answered with `refusal`, or wait for
    /// [`Gate::next_request`] when there is none.
    pub fn admit(&self, keeper: Arc<dyn Doorkeeper>, refusal: Option<Frame>) {
        let mut inside = lock(&self.inside);
        inside.keeper = Some(keeper);
        let Some(refusal) = refusal else { return };
        for late in inside.requests.drain(..) {
            // Who does not listen for the answer is told nothing.
            let _ = late.answer(&refusal);
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
        let mut inside = lock(&self.inside);
        if caller.first.head.kind == Kind::Attach {
            match &inside.refusal {
                Some(refusal) => {
                    let _ = caller.answer(refusal);
                }
                None if inside.requests.len() < REQUESTS_MAX => {
                    inside.requests.push_back(caller);
                    self.has_request.notify_one();
                }
                None => {}
            }
        } else if let Some(keeper) = inside.keeper.clone() {
            drop(inside);
            keeper.greeted(caller);
        }
    }
}

/// A connection whose first frame has not come.
struct Knock {
    channel: Channel,
    /// Until it is done, where callers have to prove themselves.
    handshake: Option<Handshake>,
    address: Option<SocketAddr>,
    since: Instant,
    first: FirstFrame,
}

/// The gate's thread.
struct Porch {
    gate: Arc<Gate>,
    listener: OwnedFd,
    trust: Option<Trust>,
    epoll: OwnedFd,
    knocks: HashMap<u64, Knock>,
    /// Oldest first; those that have gone are skipped.
    order: VecDeque<u64>,
    next: u64,
}

impl Porch {
    fn new(gate: Arc<Gate>, listener: OwnedFd, trust: Option<Trust>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), flags)?;
        epoll::add(&epoll, gate.bell.as_fd(), epoll::EventData::new_u64(BELL), flags)?;
        let (knocks, order) = Default::default();
        Ok(Self { gate, listener, trust, epoll, knocks, order, next: 0 })
    }

    fn run(&mut self) {
        while !self.gate.is_closed.load(Ordering::SeqCst) {
            let left = self.expire();
            let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; 64];
            let left = left.map(timespec);
            let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut events, left.as_ref()) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(_) => continue,
            };
            for token in tokens {
                match token {
                    LISTENER => self.accept(),
                    BELL => self.gate.bell.silence(),
                    number => self.hear(number),
                }
            }
        }
    }

    /// Drops who has taken too long; returns when the next will have.
    fn expire(&mut self) -> Option<Duration> {
        let now = Instant::now();
        while let Some(oldest) = self.order.front() {
            let Some(knock) = self.knocks.get(oldest) else {
                self.order.pop_front();
                continue;
            };
            let age = now - knock.since;
            if age < KNOCK_MAX && self.knocks.len() <= CALLERS_MAX {
                return Some(KNOCK_MAX - age);
            }
            self.knocks.remove(oldest);
        }
        None
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // A few at a time: those who are in get their turn between.
        for _ in 0..64 {
            let Ok((stream, address)) = rustix::net::acceptfrom_with(&self.listener, flags) else {
                return;
            };
            let address = address.and_then(socket_addr);
            let number = self.next;
            self.next += 1;
            let token = epoll::EventData::new_u64(number);
            if epoll::add(&self.epoll, &stream, token, epoll::EventFlags::IN).is_err() {
                continue;
            }
            let since = Instant::now();
            let first = FirstFrame::new(&[Kind::Hello, Kind::Attach]);
            let handshake = self.trust.as_ref().map(Trust::accept);
            let channel = Channel { stream, secure: None };
            self.knocks.insert(number, Knock { channel, handshake, address, since, first });
            self.order.push_back(number);
            self.expire();
        }
    }

    fn hear(&mut self, number: u64) {
        let Some(knock) = self.knocks.get_mut(&number) else { return };
        match knock.read() {
            Ok(None) => {}
            Ok(Some(first)) => {
                let Some(knock) = self.knocks.remove(&number) else { return };
                // It was there a moment ago.
                let _ = epoll::delete(&self.epoll, &knock.channel.stream);
                let (channel, address) = (Mutex::new(knock.channel), knock.address);
                self.gate.pass(Caller { channel, address, first });
            }
            Err(_) => {
                self.knocks.remove(&number);
            }
        }
    }
}

impl Knock {
    /// Goes on with the handshake, and then with the first frame.
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
            // A few hundred bytes into an empty buffer; who does not take them need not enter.
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

/// Asks a worker at one of `addresses` to serve a job, and waits for what it says.
///
/// # Errors
/// When nobody answers there in time, or what answers is no worker, or none of this job.
pub fn ask(
    addresses: &[SocketAddr],
    trust: Option<&Trust>,
    request: &Frame,
    limit: Duration,
) -> io::Result<Frame> {
    let until = Instant::now() + limit;
    let mut channel = Channel::connect(addresses, trust, until)?;
    channel.send(request, until)?;
    channel.first(&[Kind::Attached], until)
}
