//! Where other hosts knock: who they are is found out here, before anything of theirs goes further.
//!
//! A caller is a connection that has not yet sent its first frame. All of them together are served
//! by one thread and bounded in number, time and memory, so whoever can reach the port can keep
//! that thread busy and nothing else. A first frame is a greeting, and then the connection becomes
//! a link of the engine; or it asks the worker to serve a job, and then whoever has opened the gate
//! decides.

use super::parker::{Bell, timespec};
use super::wire::{Wire, lock};
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// How long a caller may take until its first frame is there.
const KNOCK_MAX: Duration = Duration::from_secs(10);
/// Callers at a time; the one that has taken longest goes when there are more.
const CALLERS_MAX: usize = 1024;
/// The longest first frame, behind its head.
const FIRST_TAIL_MAX: usize = 16 << 10;
/// How long whoever answers a caller waits for the socket.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Requests to serve a job that may wait for an answer.
const REQUESTS_MAX: usize = 16;

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// A connection whose first frame has come.
#[derive(Debug)]
pub struct Caller {
    /// The connection.
    pub stream: OwnedFd,
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
        let mut bytes = frame.head.encode(frame.tail.len()).to_vec();
        bytes.extend_from_slice(&frame.tail);
        send_all(&self.stream, &bytes, Instant::now() + ANSWER_MAX)
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
    /// Serves a listening socket from a thread of its own.
    ///
    /// # Errors
    /// When the machine has no descriptors or threads left.
    pub fn open(listener: OwnedFd) -> io::Result<Arc<Self>> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        let gate = Arc::new(Self {
            inside: Mutex::default(),
            has_request: Condvar::new(),
            is_closed: AtomicBool::new(false),
            bell: Bell::new()?,
        });
        let mut porch = Porch::new(Arc::clone(&gate), listener)?;
        std::thread::Builder::new()
            .name("mesh-gate".into())
            .stack_size(256 << 10)
            .spawn(move || porch.run())?;
        Ok(gate)
    }

    /// Lets greetings through from now on; requests are answered with `refusal`.
    pub fn admit(&self, keeper: Arc<dyn Doorkeeper>, refusal: Frame) {
        let mut inside = lock(&self.inside);
        inside.keeper = Some(keeper);
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
        let (mut inside, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
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
    stream: OwnedFd,
    address: Option<SocketAddr>,
    since: Instant,
    first: FirstFrame,
}

/// The first frame of a connection, as far as it has come.
struct FirstFrame {
    allowed: &'static [Kind],
    head: Vec<u8>,
    tail: Vec<u8>,
    decoded: Option<(Head, usize)>,
}

/// The gate's thread.
struct Porch {
    gate: Arc<Gate>,
    listener: OwnedFd,
    epoll: OwnedFd,
    knocks: HashMap<u64, Knock>,
    /// Oldest first; those that have gone are skipped.
    order: VecDeque<u64>,
    next: u64,
}

impl Porch {
    fn new(gate: Arc<Gate>, listener: OwnedFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let flags = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), flags)?;
        epoll::add(&epoll, gate.bell.as_fd(), epoll::EventData::new_u64(BELL), flags)?;
        let (knocks, order) = Default::default();
        Ok(Self { gate, listener, epoll, knocks, order, next: 0 })
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
            self.knocks.insert(number, Knock { stream, address, since, first });
            self.order.push_back(number);
            self.expire();
        }
    }

    fn hear(&mut self, number: u64) {
        let Some(knock) = self.knocks.get_mut(&number) else { return };
        match knock.first.read(&knock.stream) {
            Ok(None) => {}
            Ok(Some(first)) => {
                let Some(knock) = self.knocks.remove(&number) else { return };
                let _ = epoll::delete(&self.epoll, &knock.stream);
                let (stream, address) = (knock.stream, knock.address);
                self.gate.pass(Caller { stream, address, first });
            }
            Err(_) => {
                self.knocks.remove(&number);
            }
        }
    }
}

impl FirstFrame {
    fn new(allowed: &'static [Kind]) -> Self {
        Self { allowed, head: Vec::new(), tail: Vec::new(), decoded: None }
    }

    /// Reads no byte beyond the frame, and takes no memory before its head is judged.
    fn read(&mut self, stream: &OwnedFd) -> io::Result<Option<Frame>> {
        loop {
            let (buffer, len) = match self.decoded {
                None => (&mut self.head, HEAD_LEN),
                Some((_, len)) => (&mut self.tail, len),
            };
            if buffer.len() < len {
                let start = buffer.len();
                buffer.resize(len, 0);
                let got = rustix::net::recv(stream, &mut buffer[start..], RecvFlags::empty());
                let got = got.map(|(got, _)| got);
                buffer.truncate(start + got.unwrap_or(0));
                match got {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) | Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some((head, _)) = self.decoded {
                let tail = std::mem::take(&mut self.tail).into();
                return Ok(Some(Frame { head, tail }));
            }
            let bytes: &[u8; HEAD_LEN] = self.head[..].try_into().map_err(io::Error::other)?;
            let (head, tail_len) = Head::decode(bytes).map_err(io::Error::other)?;
            if !self.allowed.contains(&head.kind) || tail_len > FIRST_TAIL_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.decoded = Some((head, tail_len));
        }
    }
}

fn socket_addr(address: SocketAddrAny) -> Option<SocketAddr> {
    match address.address_family() {
        AddressFamily::INET | AddressFamily::INET6 => address.try_into().ok(),
        _ => None,
    }
}

fn send_all(stream: &OwnedFd, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::net::send(stream, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => wait_for(stream, PollFlags::OUT, until)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn wait_for(stream: &OwnedFd, what: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let mut fds = [PollFd::new(stream, what)];
    if left.is_zero() || poll(&mut fds, Some(&timespec(left)))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(())
}

/// Makes a link of the connection of a caller who has greeted.
pub(super) fn wire_of(caller: Caller) -> io::Result<(Arc<Wire>, Frame)> {
    Ok((Arc::new(Wire::new(caller.stream, super::wire::Reach::Afar)?), caller.first))
}

/// Asks a worker at one of `addresses` to serve a job, and waits for what it says.
///
/// # Errors
/// When nobody answers there in time, or what answers is no worker.
pub fn ask(addresses: &[SocketAddr], request: Frame, limit: Duration) -> io::Result<Frame> {
    let until = Instant::now() + limit;
    let stream = super::afar::connected(addresses, limit)?;
    let caller = Caller { stream: stream.into(), address: None, first: request };
    rustix::io::ioctl_fionbio(&caller.stream, true)?;
    caller.answer(&caller.first)?;
    let mut answer = FirstFrame::new(&[Kind::Attached]);
    loop {
        if let Some(frame) = answer.read(&caller.stream)? {
            return Ok(frame);
        }
        wait_for(&caller.stream, PollFlags::IN, until)?;
    }
}
