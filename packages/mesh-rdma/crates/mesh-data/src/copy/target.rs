//! A buffer of a process, and the transport by which its bytes are copied.
#![expect(unsafe_code, reason = "copies memory by address")]

use crate::client::link::{Link, LocalPeer};
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

/// The number of bytes that are copied between two checks whether to continue.
pub(crate) const CHUNK_LEN: usize = 1 << 20;
/// The maximum number of bytes of one request over a connection.
const STREAM_PIECE_LEN_MAX: usize = 64 << 20;
/// How long to wait for the end of a write that was aborted because its deadline passed.
const DEADLINE_FENCE_LIMIT: Duration = Duration::from_millis(25);
/// The same for a write that the caller has cancelled.
const CANCEL_FENCE_LIMIT: Duration = Duration::from_secs(1);

/// The reason why no built-in transport reaches device memory.
pub const ON_DEVICE: &str = "the memory is on a device";

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the buffer to local memory.
    Read,
    /// From local memory to the buffer.
    Write,
}

/// A registration as its handle describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The slot of the registration.
    pub slot: u32,
    /// The key, which proves that the slot still contains the same registration.
    pub key: u64,
    /// The size in bytes.
    pub len: u64,
    /// The address in its owner.
    pub address: u64,
    /// The arena segment and the offset in it, if the memory is in the arena.
    pub arena: Option<(u32, u64)>,
    /// Whether it is device memory, which no built-in transport copies.
    pub is_on_device: bool,
}

/// The built-in transports, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The memory belongs to this process.
    Memory,
    /// Both processes map the memory.
    Arena,
    /// The kernel copies from process to process.
    Attach,
    /// A Unix domain socket.
    Unix,
    /// A connection over the network.
    Tcp,
}

impl Transport {
    /// All transports, best first.
    pub const ALL: [Self; 5] = [Self::Memory, Self::Arena, Self::Attach, Self::Unix, Self::Tcp];

    /// The name of the transport.
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

/// A registration and the transport to it.
pub struct Target {
    pub(crate) remote: Remote,
    pub(crate) path: Path,
    /// False if the owner reports the memory as read-only. If the owner itself writes, the owner
    /// checks this.
    may_write: bool,
    /// The generation of the process that created the target.
    generation: usize,
}

pub(crate) enum Path {
    Memory(Arc<Domain>),
    Arena(Arc<Link>, Arc<SharedMap>),
    Attach(Arc<Link>),
    Unix(Arc<Link>),
    Tcp(Arc<Link>),
}

impl Target {
    /// A buffer of this process.
    pub fn ours(domain: &Arc<Domain>, remote: Remote) -> Self {
        let path = Path::Memory(Arc::clone(domain));
        Self { remote, path, may_write: true, generation: generation() }
    }

    /// A buffer of another process, accessed over one transport.
    ///
    /// # Errors
    /// The reason why that transport cannot be used.
    pub fn of(link: &Arc<Link>, remote: Remote, transport: Transport) -> Result<Self, DataError> {
        let unavailable = |why: &str| DataError::TransportUnavailable {
            transport: transport.name(),
            why: why.to_owned(),
        };
        if remote.is_on_device {
            return Err(unavailable(ON_DEVICE));
        }
        let shared = link.local_peer.as_ref().map_err(|why| unavailable(why));
        let link = Arc::clone(link);
        let path = match transport {
            Transport::Memory => return Err(unavailable("it belongs to another process")),
            Transport::Arena => {
                shared?;
                let why = "the memory was not taken from the arena: see mesh_rdma.allocate";
                let (segment, _) = remote.arena.ok_or_else(|| unavailable(why))?;
                let map = link.segment(segment)?;
                Path::Arena(link, map)
            }
            Transport::Attach => {
                if let Some(why) = &shared?.attach_refusal {
                    return Err(unavailable(why));
                }
                Path::Attach(link)
            }
            Transport::Unix => {
                shared?;
                Path::Unix(link)
            }
            Transport::Tcp if link.descriptor.port == 0 => {
                return Err(unavailable("it does not listen on a port"));
            }
            Transport::Tcp => Path::Tcp(link),
        };
        let mut target = Self { remote, path, may_write: true, generation: generation() };
        target.may_write = target.compare()?;
        Ok(target)
    }

    /// A buffer in device memory of another process, which can only be released.
    pub fn anchor(link: &Arc<Link>, remote: Remote) -> Self {
        let remote = Remote { is_on_device: true, ..remote };
        let path = Path::Tcp(Arc::clone(link));
        Self { remote, path, may_write: false, generation: generation() }
    }

    /// Compares the handle with the ledger of the owner. If this process itself accesses the memory
    /// of the owner, the ledger is authoritative, not the handle. Returns whether the memory may be
    /// written.
    fn compare(&self) -> Result<bool, DataError> {
        let Remote { slot, key, len, address, arena, .. } = self.remote;
        let (Path::Arena(link, _) | Path::Attach(link)) = &self.path else { return Ok(true) };
        // An invalid registration never becomes valid again; using it reports the error.
        let Some(location) = local_peer(link).ledger.location(slot, key) else { return Ok(true) };
        let skipped = address.checked_sub(location.address);
        let is_inside = skipped.and_then(|skipped| skipped.checked_add(len));
        let at = location.arena.zip(skipped).map(|((one, at), skipped)| (one, at + skipped));
        let is_arena = matches!(self.path, Path::Arena(..));
        if is_inside.is_some_and(|end| end <= location.len) && (!is_arena || at == arena) {
            return Ok(location.is_writable);
        }
        let why = "the handle says otherwise than the owner where the memory is".to_owned();
        Err(DataError::TransportUnavailable { transport: self.transport().name(), why })
    }

    /// Fails if the owner is known to be dead, or if the target belongs to the parent of this
    /// forked process, in which case a new target may work.
    ///
    /// # Errors
    /// [`DataError::PeerDied`].
    pub fn check(&self) -> Result<(), DataError> {
        if self.generation != generation() {
            let why = "this process was forked from the one that was connected to it".to_owned();
            return Err(DataError::PeerDied { name: "the owner".to_owned(), why });
        }
        match &self.path {
            Path::Memory(_) => Ok(()),
            Path::Arena(link, _) | Path::Attach(link) | Path::Unix(link) | Path::Tcp(link) => {
                link.check()
            }
        }
    }

    /// The registration.
    pub fn remote(&self) -> &Remote {
        &self.remote
    }

    /// The transport.
    pub fn transport(&self) -> Transport {
        match &self.path {
            Path::Memory(_) => Transport::Memory,
            Path::Arena(..) => Transport::Arena,
            Path::Attach(_) => Transport::Attach,
            Path::Unix(_) => Transport::Unix,
            Path::Tcp(_) => Transport::Tcp,
        }
    }

    /// The number of bytes that one thread should copy at a time in a copy of length `len`.
    pub fn piece_len(&self, len: usize) -> usize {
        match &self.path {
            Path::Memory(_) | Path::Arena(..) | Path::Attach(_) => 4 << 20,
            // The pieces are long enough to make the pause between two of them negligible, and
            // short enough that all connections finish at about the same time.
            Path::Unix(link) => stream_piece_len(len, link.unix.width()),
            Path::Tcp(link) => stream_piece_len(len, link.tcp.width()),
        }
    }

    /// The maximum number of threads for one transfer, in addition to the caller.
    pub(crate) fn width(&self) -> usize {
        match &self.path {
            Path::Memory(_) | Path::Arena(..) | Path::Attach(_) => COPIERS_MAX,
            Path::Unix(link) => link.unix.width(),
            Path::Tcp(link) => link.tcp.width(),
        }
    }

    /// An id that copies over the same connections share; copies without a connection share one,
    /// too.
    pub(crate) fn stream_group(&self) -> usize {
        match &self.path {
            Path::Memory(_) | Path::Arena(..) | Path::Attach(_) => 0,
            Path::Unix(link) | Path::Tcp(link) => Arc::as_ptr(link) as usize,
        }
    }

    /// Copies between local memory and the range of the buffer that begins at `offset`.
    ///
    /// # Errors
    /// Nothing is written after this returns, regardless of the result.
    ///
    /// # Safety
    /// `local` is mapped until this returns, for writing if the direction is [`Direction::Read`].
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
        match &self.path {
            Path::Memory(domain) => {
                let Remote { slot, key, .. } = self.remote;
                let _use = domain.own.copying(slot);
                let theirs = domain.range(slot, key, offset, local.len as u64, is_write)?;
                self.chunks(local, stop, |done, part| {
                    self.check_valid(domain.ledger().is_valid(slot, key))?;
                    // SAFETY: the caller guarantees `local`; the registration keeps the other range
                    // mapped.
                    unsafe { copy_part(direction, part, theirs.start + done) };
                    Ok(())
                })
            }
            Path::Arena(link, map) => {
                let shared = local_peer(link);
                let Remote { slot, key, .. } = self.remote;
                let theirs = self.in_arena(map, offset, local.len)?;
                let _use = shared.cells.copying(slot);
                self.chunks(local, stop, |done, part| {
                    self.check_valid(shared.ledger.is_valid(slot, key))?;
                    // SAFETY: the caller guarantees `local`; the map keeps the other range mapped.
                    unsafe { copy_part(direction, part, theirs.start + done) };
                    Ok(())
                })?;
                link.check()?;
                self.check_valid(shared.ledger.is_valid(slot, key))
            }
            // SAFETY: the caller guarantees it.
            Path::Attach(link) => unsafe { self.attach(link, direction, local, offset, stop) },
            Path::Unix(link) => self.stream(link, &link.unix, direction, local, offset, stop),
            Path::Tcp(link) => self.stream(link, &link.tcp, direction, local, offset, stop),
        }
    }

    /// Atomically changes the word at `offset`; returns its previous value.
    ///
    /// # Errors
    /// The word was not changed, unless the owner died during the call.
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
        match &self.path {
            Path::Memory(domain) => {
                let _use = domain.own.copying(slot);
                self.check_valid(domain.ledger().is_valid(slot, key))?;
                let word = word_of(domain.range(slot, key, offset, 8, true)?, offset)?;
                // SAFETY: the word is aligned; the registration keeps it mapped while the cell
                // names it.
                Ok(change(unsafe { AtomicU64::from_ptr(word) }, verb, operand, compare))
            }
            Path::Arena(link, map) => {
                let shared = local_peer(link);
                if !self.may_write {
                    return Err(DataError::ReadOnly);
                }
                let word = word_of(self.in_arena(map, offset, 8)?, offset)?;
                let _use = shared.cells.copying(slot);
                self.check_valid(shared.ledger.is_valid(slot, key))?;
                link.check()?;
                // SAFETY: the word is aligned, and the map keeps it mapped.
                Ok(change(unsafe { AtomicU64::from_ptr(word) }, verb, operand, compare))
            }
            // The kernel does not copy atomically, so the owner changes the word.
            Path::Attach(link) | Path::Unix(link) | Path::Tcp(link) => {
                let (reply, _) = link.call(&request, &[], stop.left())?;
                reply.outcome(&request)
            }
        }
    }

    /// Makes the owner release the registration once no copy is in progress.
    ///
    /// # Errors
    /// The registration was released previously, or a copy is still in progress at the deadline.
    pub fn release(&self, stop: &Stop) -> Result<(), DataError> {
        self.check()?;
        let Remote { slot, key, .. } = self.remote;
        match &self.path {
            Path::Memory(domain) => domain.release(slot, key, stop),
            Path::Arena(link, _) | Path::Attach(link) | Path::Unix(link) | Path::Tcp(link) => {
                let limit = stop.left();
                let micros = limit.map_or(u64::MAX >> 1, |left| left.as_micros() as u64);
                let request = Request { operand: micros, ..Request::of(Verb::Drop, slot, key) };
                link.call_on_stream(&request, &[], limit)?.0.outcome(&request).map(|_| ())
            }
        }
    }

    /// Maps a range without a copy, until the view is dropped.
    ///
    /// # Errors
    /// The buffer is not in memory that both processes map, or was released.
    pub fn view(&self, offset: u64, len: u64) -> Result<View, DataError> {
        self.check()?;
        self.check_range(offset, len)?;
        let Remote { slot, key, .. } = self.remote;
        let (owner, span) = match &self.path {
            Path::Memory(domain) => {
                // The cell is written below, and the key is checked afterwards: see the cells.
                let span = domain.range(slot, key, offset, len, false)?;
                (Owner::ThisProcess(Arc::clone(domain)), span)
            }
            Path::Arena(link, map) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let span = self.in_arena(map, offset, len)?;
                (Owner::LocalPeer { link: Arc::clone(link), _map: Arc::clone(map) }, span)
            }
            _ => {
                let transport = self.transport().name();
                let why = "its bytes are not in memory that both processes map".to_owned();
                return Err(DataError::TransportUnavailable { transport, why });
            }
        };
        let full = DataError::Full("512 views are in use: release some of them");
        let cell = owner.cells().begin_view(slot).ok_or(full)?;
        let view = View { owner, cell, span, slot, key, generation: self.generation };
        view.owner.check()?;
        self.check_valid(view.is_valid())?;
        Ok(view)
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

    pub(crate) fn check_valid(&self, is_valid: bool) -> Result<(), DataError> {
        if is_valid { Ok(()) } else { Err(DataError::Released) }
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
        let shared = local_peer(link);
        let Remote { slot, key, address, .. } = self.remote;
        let _use = shared.cells.copying(slot);
        let result = self.chunks(local, stop, |done, part| {
            self.check_valid(shared.ledger.is_valid(slot, key))?;
            if direction == Direction::Write && shared.process.is_over() {
                // If its pid were reused, the write would modify the memory of another process.
                link.mark_dead("it has ended");
                return link.check();
            }
            // The kernel accepts any sum as an address, including one from a malformed handle.
            let theirs = address.wrapping_add(offset).wrapping_add(done as u64);
            // SAFETY: the caller guarantees `part`; the other range is registered, and the cell
            // protects it.
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
        let copy = StreamCopy { direction, local, offset };
        let first = self.copy_over_stream(link, streams, streams.acquire(stop)?, copy, stop);
        let Err(DataError::PeerDied { .. }) = &first else { return first };
        // Only that connection may have ended: an owner shuts down connections that delay a
        // release.
        link.check()?;
        self.copy_over_stream(link, streams, streams.add(stop)?, copy, stop)
    }

    fn copy_over_stream(
        &self,
        link: &Link,
        streams: &Streams,
        stream: Stream,
        copy: StreamCopy,
        stop: &Stop,
    ) -> Result<(), DataError> {
        let Remote { slot, key, .. } = self.remote;
        let StreamCopy { direction, local, offset } = copy;
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
                streams.release(stream);
                result
            }
            Err(error) => {
                // The owner also ends late operations, and may do so first.
                let mut error = match (error, stop.check()) {
                    (SocketError::Closed | SocketError::System(_), Err(late)) => late,
                    (error, _) => error.of(&link.descriptor.name),
                };
                let number = stream.abort();
                if direction == Direction::Write {
                    // Sent data may still be on its way to the buffer; it must end before the error
                    // is returned.
                    error = fence_write(link, streams, number, error, stop);
                }
                link.check()?;
                Err(error)
            }
        }
    }
}

/// The part of a copy that one connection carries.
#[derive(Clone, Copy)]
struct StreamCopy {
    direction: Direction,
    local: Span,
    offset: u64,
}

/// Makes the owner end an aborted write, for as long as the caller can wait; returns the error for
/// the caller.
fn fence_write(
    link: &Link,
    streams: &Streams,
    number: u64,
    error: DataError,
    stop: &Stop,
) -> DataError {
    if !matches!(error, DataError::Deadline | DataError::Cancelled) {
        return error;
    }
    // A piece that is cancelled because another one failed waits no longer than that piece.
    let is_cancelled = stop.is_cancelled();
    let limit = if is_cancelled { CANCEL_FENCE_LIMIT } else { DEADLINE_FENCE_LIMIT };
    if streams.fence(number, limit) {
        return error;
    }
    DataError::Unsettled { name: link.descriptor.name.clone(), is_cancelled }
}

fn stream_piece_len(len: usize, width: usize) -> usize {
    // The minimum is one chunk, so a copy of zero bytes has one piece, too.
    len.div_ceil(width * 4).next_multiple_of(CHUNK_LEN).clamp(CHUNK_LEN, STREAM_PIECE_LEN_MAX)
}

/// A mapped range of a buffer. The owner keeps the memory until this is dropped.
pub struct View {
    owner: Owner,
    cell: usize,
    span: Span,
    slot: u32,
    key: u64,
    /// The generation of the process that maps the range.
    generation: usize,
}

enum Owner {
    ThisProcess(Arc<Domain>),
    /// The map provides access to the bytes.
    LocalPeer {
        link: Arc<Link>,
        _map: Arc<SharedMap>,
    },
}

impl View {
    /// The location of the bytes in this process.
    pub fn span(&self) -> Span {
        self.span
    }

    /// Whether the registration is still valid; the bytes remain accessible in either case.
    pub fn is_valid(&self) -> bool {
        self.owner.ledger().is_valid(self.slot, self.key)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.generation != generation() {
            // The cell belongs to the parent, which still maps the bytes.
            return;
        }
        self.owner.cells().end_view(self.cell);
    }
}

impl Owner {
    fn cells(&self) -> &Cells {
        match self {
            Self::ThisProcess(domain) => &domain.own,
            Self::LocalPeer { link, .. } => &local_peer(link).cells,
        }
    }

    fn ledger(&self) -> &Ledger {
        match self {
            Self::ThisProcess(domain) => domain.ledger(),
            Self::LocalPeer { link, .. } => &local_peer(link).ledger,
        }
    }

    fn check(&self) -> Result<(), DataError> {
        if let Self::LocalPeer { link, .. } = self { link.check() } else { Ok(()) }
    }
}

/// The resources shared with the other side of a transport within this machine.
pub(crate) fn local_peer(link: &Link) -> &LocalPeer {
    link.local_peer.as_ref().expect("such a path exists only to a process of this machine")
}

/// # Safety
/// Both ranges are mapped, and the destination is writable.
unsafe fn copy_part(direction: Direction, ours: Span, theirs: usize) {
    let theirs = Span { start: theirs, len: ours.len };
    // SAFETY: the caller guarantees both ranges.
    unsafe {
        match direction {
            Direction::Read => ours.copy_from(theirs),
            Direction::Write => theirs.copy_from(ours),
        }
    }
}
