//! A buffer of some process, and the way its bytes are copied.
#![expect(unsafe_code, reason = "copies memory by address")]

use crate::client::link::{Link, Nearby};
use crate::client::streams::{Stream, Streams};
use crate::connection::blocking_io::SocketError;
use crate::connection::frame::{Request, Verb};
use crate::domain::Domain;
use crate::error::DataError;
use crate::memory::cells::Cells;
use crate::memory::ledger::Ledger;
use crate::memory::shared_map::SharedMap;
use crate::process::generation;
use crate::server::connection_handler::{change, word_of};
use crate::span::Span;
use crate::stop::Stop;
use crate::transfers::thread_pool::COPIERS_MAX;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// How much is copied before it is looked whether to go on.
pub(crate) const CHUNK_LEN: usize = 1 << 20;
/// How much goes over a connection at a time at most.
const STREAM_PIECE_LEN_MAX: usize = 64 << 20;
/// How long the end of a write is waited for that was broken off because its time was over.
const DEADLINE_FENCE_LIMIT: Duration = Duration::from_millis(25);
/// The same where the caller has given it up.
const CANCEL_FENCE_LIMIT: Duration = Duration::from_secs(1);

/// Why no way here is one to memory of a device.
pub const ON_DEVICE: &str = "the memory is on a device";

/// Whether bytes come or go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the buffer to our memory.
    Read,
    /// From our memory to the buffer.
    Write,
}

/// A registration as its handle describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Which one,
    pub slot: u32,
    /// and the proof that it is still the same.
    pub key: u64,
    /// How many bytes.
    pub len: u64,
    /// The address in its owner.
    pub address: u64,
    /// The arena segment and the place in it, where it lies in one.
    pub arena: Option<(u32, u64)>,
    /// Whether it is memory of a device: then no way here copies it.
    pub is_on_device: bool,
}

/// How bytes get there, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is our own memory.
    Memory,
    /// Memory that both processes map.
    Arena,
    /// The kernel copies from process to process.
    Attach,
    /// A socket of this machine.
    Unix,
    /// A connection over the network.
    Tcp,
}

impl Kind {
    /// All, best first.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Arena, Self::Attach, Self::Unix, Self::Tcp];

    /// Its name as a transport.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Arena => "arena",
            Self::Attach => "attach",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        }
    }
}

/// A registration with the way to it.
pub struct Target {
    pub(crate) remote: Remote,
    pub(crate) way: Way,
    /// Not where the owner says so. Where the owner writes, it looks for itself.
    may_write: bool,
    /// Which process has found it.
    generation: usize,
}

pub(crate) enum Way {
    Memory(Arc<Domain>),
    Arena(Arc<Link>, Arc<SharedMap>),
    Attach(Arc<Link>),
    Unix(Arc<Link>),
    Tcp(Arc<Link>),
}

impl Target {
    /// A buffer of this process.
    pub fn ours(domain: &Arc<Domain>, remote: Remote) -> Self {
        let way = Way::Memory(Arc::clone(domain));
        Self { remote, way, may_write: true, generation: generation() }
    }

    /// A buffer of another process, reached in one way.
    ///
    /// # Errors
    /// That way cannot be used, and why.
    pub fn of(link: &Arc<Link>, remote: Remote, kind: Kind) -> Result<Self, DataError> {
        let no_way = |why: &str| DataError::NoWay { transport: kind.name(), why: why.to_owned() };
        if remote.is_on_device {
            return Err(no_way(ON_DEVICE));
        }
        let shared = link.nearby.as_ref().map_err(|why| no_way(why));
        let link = Arc::clone(link);
        let way = match kind {
            Kind::Memory => return Err(no_way("it belongs to another process")),
            Kind::Arena => {
                shared?;
                let why = "the memory was not taken from the arena: see mesh_rdma.allocate";
                let (segment, _) = remote.arena.ok_or_else(|| no_way(why))?;
                let map = link.segment(segment)?;
                Way::Arena(link, map)
            }
            Kind::Attach => {
                if let Some(why) = &shared?.attach_refusal {
                    return Err(no_way(why));
                }
                Way::Attach(link)
            }
            Kind::Unix => {
                shared?;
                Way::Unix(link)
            }
            Kind::Tcp if link.descriptor.port == 0 => return Err(no_way("it listens at no port")),
            Kind::Tcp => Way::Tcp(link),
        };
        let mut target = Self { remote, way, may_write: true, generation: generation() };
        target.may_write = target.compare()?;
        Ok(target)
    }

    /// A buffer of a device of another process: it can be released, and nothing else.
    pub fn anchor(link: &Arc<Link>, remote: Remote) -> Self {
        let remote = Remote { is_on_device: true, ..remote };
        let way = Way::Tcp(Arc::clone(link));
        Self { remote, way, may_write: false, generation: generation() }
    }

    /// Where this process itself goes to the memory of another one, the owner's word counts for
    /// what that is, and not what the handle says. Tells whether it may be written.
    fn compare(&self) -> Result<bool, DataError> {
        let Remote { slot, key, len, address, arena, .. } = self.remote;
        let (Way::Arena(link, _) | Way::Attach(link)) = &self.way else { return Ok(true) };
        // One that is not good will not be so again: whoever uses it hears of that.
        let Some(place) = nearby(link).ledger.place(slot, key) else { return Ok(true) };
        let skipped = address.checked_sub(place.address);
        let is_inside = skipped.and_then(|skipped| skipped.checked_add(len));
        let at = place.arena.zip(skipped).map(|((one, at), skipped)| (one, at + skipped));
        let is_arena = matches!(self.way, Way::Arena(..));
        if is_inside.is_some_and(|end| end <= place.len) && (!is_arena || at == arena) {
            return Ok(place.is_writable);
        }
        let why = "the handle says otherwise than the owner where the memory is".to_owned();
        Err(DataError::NoWay { transport: self.kind().name(), why })
    }

    /// Fails when the owner is known to be gone, or the way is that of another process, which this
    /// one was forked from: there may be another way.
    ///
    /// # Errors
    /// [`DataError::PeerDied`].
    pub fn check(&self) -> Result<(), DataError> {
        if self.generation != generation() {
            let why = "this process was forked from the one that was connected to it".to_owned();
            return Err(DataError::PeerDied { name: "the owner".to_owned(), why });
        }
        match &self.way {
            Way::Memory(_) => Ok(()),
            Way::Arena(link, _) | Way::Attach(link) | Way::Unix(link) | Way::Tcp(link) => {
                link.check()
            }
        }
    }

    /// The registration.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// Which way it is.
    pub fn kind(&self) -> Kind {
        match &self.way {
            Way::Memory(_) => Kind::Memory,
            Way::Arena(..) => Kind::Arena,
            Way::Attach(_) => Kind::Attach,
            Way::Unix(_) => Kind::Unix,
            Way::Tcp(_) => Kind::Tcp,
        }
    }

    /// How much of a copy of that length one thread should do at a time.
    pub fn piece_len(&self, len: usize) -> usize {
        match &self.way {
            Way::Memory(_) | Way::Arena(..) | Way::Attach(_) => 4 << 20,
            // Long enough that the pause between two is not seen, short enough that all
            // connections end at about the same time.
            Way::Unix(link) => stream_piece_len(len, link.unix.width()),
            Way::Tcp(link) => stream_piece_len(len, link.tcp.width()),
        }
    }

    /// How many threads at most should work on one transfer, beside the caller.
    pub(crate) fn width(&self) -> usize {
        match &self.way {
            Way::Memory(_) | Way::Arena(..) | Way::Attach(_) => COPIERS_MAX,
            Way::Unix(link) => link.unix.width(),
            Way::Tcp(link) => link.tcp.width(),
        }
    }

    /// What copies by the same connections have in common; all that need none are one.
    pub(crate) fn lane(&self) -> usize {
        match &self.way {
            Way::Memory(_) | Way::Arena(..) | Way::Attach(_) => 0,
            Way::Unix(link) | Way::Tcp(link) => Arc::as_ptr(link) as usize,
        }
    }

    /// Copies between our memory and the buffer, whose range begins at `offset`.
    ///
    /// # Errors
    /// Nothing is written any more when this returns, whatever it returns.
    ///
    /// # Safety
    /// `local` is mapped until this returns, for writing where the direction is that.
    pub unsafe fn copy(
        &self,
        direction: Direction,
        local: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        self.check()?;
        self.check_range(offset, local.len as u64)?;
        stop.check()?;
        let is_write = direction == Direction::Write;
        if is_write && !self.may_write {
            return Err(DataError::ReadOnly);
        }
        match &self.way {
            Way::Memory(domain) => {
                let Remote { slot, key, .. } = self.remote;
                let _use = domain.own.copying(slot);
                let theirs = domain.range(slot, key, offset, local.len as u64, is_write)?;
                self.chunks(local, stop, |done, part| {
                    self.good(domain.ledger().is_good(slot, key))?;
                    // SAFETY: the caller's for ours; the registration keeps the other mapped.
                    unsafe { copy_part(direction, part, theirs.start + done) };
                    Ok(())
                })
            }
            Way::Arena(link, map) => {
                let shared = nearby(link);
                let Remote { slot, key, .. } = self.remote;
                let theirs = self.in_arena(map, offset, local.len)?;
                let _use = shared.cells.copying(slot);
                self.chunks(local, stop, |done, part| {
                    self.good(shared.ledger.is_good(slot, key))?;
                    // SAFETY: the caller's for ours; the map holds the other.
                    unsafe { copy_part(direction, part, theirs.start + done) };
                    Ok(())
                })?;
                link.check()?;
                self.good(shared.ledger.is_good(slot, key))
            }
            // SAFETY: passed on.
            Way::Attach(link) => unsafe { self.attach(link, direction, local, offset, stop) },
            Way::Unix(link) => self.stream(link, &link.unix, direction, local, offset, stop),
            Way::Tcp(link) => self.stream(link, &link.tcp, direction, local, offset, stop),
        }
    }

    /// Changes the word at `offset` as one; gives what was there.
    ///
    /// # Errors
    /// The word was not changed, unless the process died meanwhile.
    pub fn change(
        &self,
        verb: Verb,
        offset: u64,
        operand: u64,
        compare: u64,
        stop: &Stop,
    ) -> Result<u64, DataError> {
        self.check()?;
        self.check_range(offset, 8)?;
        stop.check()?;
        let Remote { slot, key, .. } = self.remote;
        let request =
            Request { offset, length: 0, operand, compare, ..Request::of(verb, slot, key) };
        match &self.way {
            Way::Memory(domain) => {
                let _use = domain.own.copying(slot);
                self.good(domain.ledger().is_good(slot, key))?;
                let word = word_of(domain.range(slot, key, offset, 8, true)?, offset)?;
                // SAFETY: aligned; the registration keeps it mapped while the cell names it.
                Ok(change(unsafe { AtomicU64::from_ptr(word) }, verb, operand, compare))
            }
            Way::Arena(link, map) => {
                let shared = nearby(link);
                if !self.may_write {
                    return Err(DataError::ReadOnly);
                }
                let word = word_of(self.in_arena(map, offset, 8)?, offset)?;
                let _use = shared.cells.copying(slot);
                self.good(shared.ledger.is_good(slot, key))?;
                link.check()?;
                // SAFETY: aligned, and held by the map.
                Ok(change(unsafe { AtomicU64::from_ptr(word) }, verb, operand, compare))
            }
            // What the kernel copies is not changed as one: the owner does it.
            Way::Attach(link) | Way::Unix(link) | Way::Tcp(link) => {
                let (reply, _) = link.ask(&request, &[], stop.left())?;
                reply.outcome(&request)
            }
        }
    }

    /// Has the owner take the registration back, when nobody copies any more.
    ///
    /// # Errors
    /// It was taken back before, or somebody still copies when the time is over.
    pub fn release(&self, stop: &Stop) -> Result<(), DataError> {
        self.check()?;
        let Remote { slot, key, .. } = self.remote;
        match &self.way {
            Way::Memory(domain) => domain.release(slot, key, stop),
            Way::Arena(link, _) | Way::Attach(link) | Way::Unix(link) | Way::Tcp(link) => {
                let limit = stop.left();
                let micros = limit.map_or(u64::MAX >> 1, |left| left.as_micros() as u64);
                let request = Request { operand: micros, ..Request::of(Verb::Drop, slot, key) };
                link.ask_aside(&request, &[], limit)?.0.outcome(&request).map(|_| ())
            }
        }
    }

    /// Brings a range into view, without a copy, for as long as the loan lives.
    ///
    /// # Errors
    /// The buffer is not in memory that both processes map, or was released.
    pub fn borrow(&self, offset: u64, len: u64) -> Result<Loan, DataError> {
        self.check()?;
        self.check_range(offset, len)?;
        let Remote { slot, key, .. } = self.remote;
        let (lender, span) = match &self.way {
            Way::Memory(domain) => {
                // Told before it is looked at: see the cells.
                let span = domain.range(slot, key, offset, len, false)?;
                (Lender::Ourselves(Arc::clone(domain)), span)
            }
            Way::Arena(link, map) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let span = self.in_arena(map, offset, len)?;
                (Lender::Nearby { link: Arc::clone(link), _map: Arc::clone(map) }, span)
            }
            _ => {
                let transport = self.kind().name();
                let why = "its bytes are not in memory that both processes map".to_owned();
                return Err(DataError::NoWay { transport, why });
            }
        };
        let full = DataError::Full("512 borrowed views are in use: give some of them back");
        let cell = lender.cells().borrow(slot).ok_or(full)?;
        let loan = Loan { lender, cell, span, slot, key, generation: self.generation };
        loan.lender.check()?;
        self.good(loan.is_good())?;
        Ok(loan)
    }

    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<(), DataError> {
        if self.remote.is_on_device {
            return Err(DataError::OnDevice);
        }
        let end = offset.saturating_add(len);
        if end <= self.remote.len {
            return Ok(());
        }
        Err(DataError::OutOfBounds { offset, end, len: self.remote.len })
    }

    pub(crate) fn good(&self, is_good: bool) -> Result<(), DataError> {
        if is_good { Ok(()) } else { Err(DataError::Released) }
    }

    pub(crate) fn in_arena(
        &self,
        map: &SharedMap,
        offset: u64,
        len: usize,
    ) -> Result<Span, DataError> {
        let start = self.remote.arena.and_then(|(_, start)| start.checked_add(offset));
        let start = start.and_then(|start| usize::try_from(start).ok());
        start.and_then(|start| map.span().part(start, len)).ok_or(DataError::OutOfBounds {
            offset,
            end: offset.saturating_add(len as u64),
            len: self.remote.len,
        })
    }

    fn chunks(
        &self,
        local: Span,
        stop: &Stop,
        mut copy: impl FnMut(usize, Span) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut done = 0;
        loop {
            let len = CHUNK_LEN.min(local.len - done);
            copy(done, local.part(done, len).expect("inside of the range"))?;
            done += len;
            if done == local.len {
                return Ok(());
            }
            stop.check()?;
        }
    }

    /// # Safety
    /// As for [`Target::copy`].
    unsafe fn attach(
        &self,
        link: &Link,
        direction: Direction,
        local: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        let shared = nearby(link);
        let Remote { slot, key, address, .. } = self.remote;
        let _use = shared.cells.copying(slot);
        let result = self.chunks(local, stop, |done, part| {
            self.good(shared.ledger.is_good(slot, key))?;
            if direction == Direction::Write && shared.process.is_over() {
                // Its number may become another's, whose memory that would be.
                link.lose("it has ended");
                return link.check();
            }
            // Any sum is an address to the kernel, also one that a broken handle leads to.
            let theirs = address.wrapping_add(offset).wrapping_add(done as u64);
            // SAFETY: the caller's; theirs is an offered range, and the cell keeps it so.
            let copied = unsafe {
                match direction {
                    Direction::Read => shared.process.read(part, theirs),
                    Direction::Write => shared.process.write(part, theirs),
                }
            };
            match copied {
                Ok(copied) if copied == part.len => Ok(()),
                Ok(_) => Err(DataError::system("cannot attach all of the buffer")(
                    std::io::Error::from_raw_os_error(libc::EFAULT),
                )),
                Err(error) => Err(DataError::system("cannot attach the buffer")(error)),
            }
        });
        self.attached(link, result)
    }

    fn stream(
        &self,
        link: &Link,
        streams: &Streams,
        direction: Direction,
        local: Span,
        offset: u64,
        stop: &Stop,
    ) -> Result<(), DataError> {
        link.check()?;
        let haul = Haul { direction, local, offset };
        let first = self.haul(link, streams, streams.take(stop)?, haul, stop);
        let Err(DataError::PeerDied { .. }) = &first else { return first };
        // That connection alone may have ended: an owner shuts those that hold up a release.
        link.check()?;
        self.haul(link, streams, streams.add(stop)?, haul, stop)
    }

    fn haul(
        &self,
        link: &Link,
        streams: &Streams,
        stream: Stream,
        haul: Haul,
        stop: &Stop,
    ) -> Result<(), DataError> {
        let Remote { slot, key, .. } = self.remote;
        let Haul { direction, local, offset } = haul;
        let request =
            Request { offset, length: local.len as u64, ..Request::of(Verb::Read, slot, key) };
        let result = match direction {
            Direction::Read => stream.read(&request, local, stop),
            Direction::Write => {
                let left = stop.left().map_or(0, |left| left.as_micros().max(1));
                let operand = u64::try_from(left).unwrap_or(0);
                let request = Request { verb: Verb::Write, operand, ..request };
                stream.write(&request, local, stop).map(|done| done.map(|_| ()))
            }
        };
        match result {
            Ok(result) => {
                streams.give_back(stream);
                result
            }
            Err(error) => {
                // The owner ends what is late as well, and may be the first to do so.
                let mut error = match (error, stop.check()) {
                    (SocketError::Closed | SocketError::System(_), Err(late)) => late,
                    (error, _) => error.of(&link.descriptor.name),
                };
                let number = stream.break_off();
                if direction == Direction::Write {
                    // What was sent may be on its way to the buffer: it ends before we say so.
                    error = settle(link, streams, number, error, stop);
                }
                link.check()?;
                Err(error)
            }
        }
    }
}

/// What one connection carries.
#[derive(Clone, Copy)]
struct Haul {
    direction: Direction,
    local: Span,
    offset: u64,
}

/// Has the owner end a write that was broken off, for as long as the caller can wait; gives what
/// the caller is told.
fn settle(link: &Link, streams: &Streams, number: u64, error: DataError, stop: &Stop) -> DataError {
    if !matches!(error, DataError::Deadline | DataError::Cancelled) {
        return error;
    }
    // What ends because another piece has failed waits no longer than that one.
    let is_cancelled = stop.is_cancelled();
    let limit = if is_cancelled { CANCEL_FENCE_LIMIT } else { DEADLINE_FENCE_LIMIT };
    if streams.fence(number, limit) {
        return error;
    }
    DataError::Unsettled { name: link.descriptor.name.clone(), is_cancelled }
}

fn stream_piece_len(len: usize, width: usize) -> usize {
    // A chunk at least: also no bytes at all are one piece.
    len.div_ceil(width * 4).next_multiple_of(CHUNK_LEN).clamp(CHUNK_LEN, STREAM_PIECE_LEN_MAX)
}

/// Bytes of a buffer in view of this process. Their owner keeps them until this is dropped.
pub struct Loan {
    lender: Lender,
    cell: usize,
    span: Span,
    slot: u32,
    key: u64,
    /// Which process has it in view.
    generation: usize,
}

enum Lender {
    Ourselves(Arc<Domain>),
    /// The map is what the bytes are seen through.
    Nearby {
        link: Arc<Link>,
        _map: Arc<SharedMap>,
    },
}

impl Loan {
    /// Where the bytes are in this process.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Whether the registration is still good; the bytes stay in either case.
    pub fn is_good(&self) -> bool {
        self.lender.ledger().is_good(self.slot, self.key)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.generation != generation() {
            // The cell is that of the parent, which still has the bytes in view.
            return;
        }
        self.lender.cells().give_back(self.cell);
    }
}

impl Lender {
    fn cells(&self) -> &Cells {
        match self {
            Self::Ourselves(domain) => &domain.own,
            Self::Nearby { link, .. } => &nearby(link).cells,
        }
    }

    fn ledger(&self) -> &Ledger {
        match self {
            Self::Ourselves(domain) => domain.ledger(),
            Self::Nearby { link, .. } => &nearby(link).ledger,
        }
    }

    fn check(&self) -> Result<(), DataError> {
        if let Self::Nearby { link, .. } = self { link.check() } else { Ok(()) }
    }
}

/// What is shared with the other side of a way that stays on this machine.
pub(crate) fn nearby(link: &Link) -> &Nearby {
    link.nearby.as_ref().expect("such a way is only taken to a process of this machine")
}

/// # Safety
/// Both are mapped, the one that is written for writing.
unsafe fn copy_part(direction: Direction, ours: Span, theirs: usize) {
    let theirs = Span { start: theirs, len: ours.len };
    // SAFETY: the caller's.
    unsafe {
        match direction {
            Direction::Read => ours.copy_from(theirs),
            Direction::Write => theirs.copy_from(ours),
        }
    }
}
