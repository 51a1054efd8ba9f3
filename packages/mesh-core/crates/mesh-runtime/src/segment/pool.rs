//! The sender's side: segments that are filled, read by other processes, and filled again.

use super::copy::{Copier, THREADS_MAX};
use super::direct_receive::DirectReceive;
use super::memory::Memory;
use super::slots::{Refusal, ReservedSegment, Slots};
use mesh_wire::frame::Part;
use mesh_wire::id::ProcId;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Alignment of parts in bytes: a cache line, which vector instructions and torch require.
const PART_ALIGN: usize = 64;

/// The memory limits of a [`SegmentPool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLimits {
    /// Bytes of memory, in use and idle. Further messages are refused with [`FillError::Full`].
    pub bytes_max: usize,
    /// Bytes kept warm while unused.
    ///
    /// The segment that was released last is kept even if it alone is larger;
    /// [`SegmentPool::sweep`] frees it eventually.
    pub idle_bytes_max: usize,
    /// Number of segments, and therefore of descriptors, here and in every reader.
    pub segments_max: usize,
    /// Threads that copy one large message, including the caller's; never more than cores.
    pub copy_threads_max: usize,
}

impl Default for SegmentLimits {
    fn default() -> Self {
        Self {
            bytes_max: 4 << 30,
            idle_bytes_max: 512 << 20,
            segments_max: 64,
            copy_threads_max: THREADS_MAX,
        }
    }
}

/// The reason why buffers were not copied into a segment.
#[derive(Debug, Error)]
pub enum FillError {
    /// Readers hold too much memory. Send the bytes through the socket, or retry after a release.
    #[error("shared segments are full ({bytes_in_use} bytes in use): readers still hold the data")]
    Full {
        /// Bytes that readers hold.
        bytes_in_use: usize,
    },
    /// The message exceeds the limit of the pool. Send the bytes through the socket.
    #[error("{len} bytes do not fit in shared segments of {max} bytes: raise bytes_max")]
    TooLarge {
        /// Length of the message in bytes.
        len: usize,
        /// [`SegmentLimits::bytes_max`].
        max: usize,
    },
    /// A message without readers would never be released.
    #[error("a shared segment needs a reader: name the processes that it is for")]
    NoReaders,
    /// The pool belongs to the process from which this one was forked.
    #[error("the segment pool belongs to the parent process: create another one after a fork")]
    Forked,
    /// The kernel refused, usually because of a lack of memory or descriptors.
    #[error("cannot allocate memory for a shared segment: {0}")]
    Io(#[from] io::Error),
}

impl From<FillError> for io::Error {
    fn from(error: FillError) -> Self {
        let kind = match &error {
            FillError::Io(source) => source.kind(),
            FillError::Full { .. } => io::ErrorKind::WouldBlock,
            FillError::TooLarge { .. } => io::ErrorKind::FileTooLarge,
            FillError::NoReaders => io::ErrorKind::InvalidInput,
            FillError::Forked => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// A message that is stored in a segment and waits for its readers.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The segment.
    pub segment: u32,
    /// The generation of the segment; a release names it.
    pub generation: u32,
    /// The descriptor that each reader must have received once before it opens the parts.
    pub fd: Arc<OwnedFd>,
    /// The locations of the buffers, in their order.
    pub parts: Vec<Part>,
}

/// Statistics of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentStats {
    /// Segments created so far; they are kept, with or without memory.
    pub segments: usize,
    /// Bytes of memory, in use and idle.
    pub bytes: usize,
    /// Bytes of memory that readers hold or that are being filled.
    pub bytes_in_use: usize,
    /// Messages filled.
    pub fills: u64,
    /// Messages that needed no new memory.
    pub fills_warm: u64,
    /// Messages refused because the pool was full.
    pub fills_refused: u64,
}

/// Memory that this process shares with its readers.
///
/// All methods may be called from any thread; copies are made without holding the lock.
pub struct SegmentPool {
    owner: ProcId,
    limits: SegmentLimits,
    copier: Copier,
    slots: Mutex<Slots>,
    pid: u32,
}

impl SegmentPool {
    /// Creates the pool of process `owner`, without segments.
    pub fn new(owner: ProcId, limits: SegmentLimits) -> Self {
        let copier = Copier::new(limits.copy_threads_max);
        Self { owner, limits, copier, slots: Mutex::default(), pid: std::process::id() }
    }

    /// Copies `buffers` into one segment, which `readers` hold until each has released it.
    ///
    /// A reader that is listed several times must release the segment as often. If the message
    /// could not be sent to a reader, the caller must release the segment for that reader.
    ///
    /// # Errors
    /// [`FillError`]; then nothing is held.
    pub fn fill(&self, buffers: &[&[u8]], readers: &[ProcId]) -> Result<Filled, FillError> {
        if self.is_forked() {
            return Err(FillError::Forked);
        }
        if readers.is_empty() {
            return Err(FillError::NoReaders);
        }
        let (placed, len) = lay_out(buffers);
        let ReservedSegment { index, memory, victims } = self.take(len)?;
        // Their memory is needed for this message.
        self.empty(victims);
        let memory = self.copy(index, memory, &placed)?;
        let fd = memory.fd();
        let generation = self.lock().publish(index, memory, readers);
        let segment = u32::try_from(index).expect("segments are few");
        let part = |(offset, buffer): &(usize, &[u8])| {
            let (owner, offset, len) = (self.owner, *offset as u64, buffer.len() as u64);
            Part { owner, segment, generation, offset, len }
        };
        let parts = placed.iter().map(part).collect();
        Ok(Filled { segment, generation, fd, parts })
    }

    /// Takes a segment for a message of `len` bytes that will arrive.
    ///
    /// If the pool is exhausted, private memory is used instead.
    pub fn begin_direct_receive(self: &Arc<Self>, len: usize) -> DirectReceive {
        let taken = if self.is_forked() { None } else { self.take(len).ok() };
        taken.map_or_else(
            || DirectReceive::plain(len),
            |ReservedSegment { index, memory, victims }| {
                self.empty(victims);
                DirectReceive::shared(len, Arc::clone(self), index, memory)
            },
        )
    }

    /// Appends bytes to a segment that was taken for `len` bytes.
    pub(super) fn append(
        &self,
        memory: &mut Option<Memory>,
        (at, len): (usize, usize),
        bytes: &[u8],
    ) -> io::Result<()> {
        let memory = match memory {
            Some(memory) => memory,
            None => memory.insert(Memory::create(len)?),
        };
        memory.append(at, bytes, &self.copier)
    }

    /// Hands a segment that was taken and filled to its readers.
    pub(super) fn publish(
        &self,
        (index, memory): (usize, Memory),
        len: usize,
        readers: &[ProcId],
    ) -> Filled {
        let fd = memory.fd();
        let generation = self.lock().publish(index, memory, readers);
        let segment = u32::try_from(index).expect("segments are few");
        let part = Part { owner: self.owner, segment, generation, offset: 0, len: len as u64 };
        Filled { segment, generation, fd, parts: vec![part] }
    }

    /// Returns a segment that was taken and is not needed after all.
    pub(super) fn put_back(&self, index: usize, memory: Option<Memory>) {
        if !self.is_forked() {
            self.lock().put_back(index, memory);
        }
    }

    /// Adds `readers` as holders of a generation of a segment; each has to release it.
    ///
    /// Returns `false` if that generation has ended: then nothing is held, and a release has no
    /// effect. This is for bytes that a reader has handed back, or that are forwarded while a
    /// process holds them.
    pub fn acquire(&self, segment: u32, generation: u32, readers: &[ProcId]) -> bool {
        !self.is_forked() && self.lock().acquire(segment as usize, generation, readers)
    }

    /// Whether any process holds this generation of a segment.
    pub fn is_referenced(&self, segment: u32, generation: u32) -> bool {
        !self.is_forked() && self.lock().is_read(segment as usize, generation)
    }

    /// Ends one reference of `reader`. Repeated, late and unknown releases have no effect.
    pub fn release(&self, segment: u32, generation: u32, reader: ProcId) {
        if self.is_forked() {
            return;
        }
        let mut slots = self.lock();
        slots.release(segment as usize, generation, reader);
        let victims = slots.take_excess(self.limits.idle_bytes_max);
        drop(slots);
        self.empty(victims);
    }

    /// Releases everything that `reader` held.
    pub fn reader_died(&self, reader: ProcId) {
        if self.is_forked() {
            return;
        }
        let mut slots = self.lock();
        slots.release_all(reader);
        let victims = slots.take_excess(self.limits.idle_bytes_max);
        drop(slots);
        self.empty(victims);
    }

    /// Frees the memory that was not used since the previous sweep.
    ///
    /// Call this every few seconds, so that a process that has stopped sending keeps no memory.
    pub fn sweep(&self) {
        if self.is_forked() {
            return;
        }
        let victims = self.lock().take_stale();
        self.empty(victims);
    }

    /// Returns the statistics of the pool.
    pub fn stats(&self) -> SegmentStats {
        if self.is_forked() { SegmentStats::default() } else { self.lock().stats() }
    }

    /// Whether this process is a fork of the owner.
    ///
    /// In a fork the memory belongs to the parent, and a thread that does not exist here may hold
    /// the lock.
    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // No code panics between two changes that belong together.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, len: usize) -> Result<ReservedSegment, FillError> {
        let mut slots = self.lock();
        slots.take(len, &self.limits).map_err(|refusal| match refusal {
            Refusal::Full => FillError::Full { bytes_in_use: slots.stats().bytes_in_use },
            Refusal::TooLarge => FillError::TooLarge { len, max: self.limits.bytes_max },
        })
    }

    /// Copies buffers into a segment that was taken.
    fn copy(
        &self,
        index: usize,
        memory: Option<Memory>,
        placed: &[(usize, &[u8])],
    ) -> Result<Memory, FillError> {
        let (memory, error) = match memory.map_or_else(|| Memory::create(0), Ok) {
            Ok(mut memory) => match memory.fill(placed, &self.copier) {
                Ok(()) => return Ok(memory),
                Err(error) => (Some(memory), error),
            },
            Err(error) => (None, error),
        };
        self.lock().put_back(index, memory);
        Err(FillError::Io(error))
    }

    /// Frees the memory of segments. This takes long, so the lock must not be held.
    fn empty(&self, victims: Vec<(usize, Memory)>) {
        for (index, mut memory) in victims {
            // If this fails, the memory stays counted and is tried again.
            let _ = memory.punch();
            self.lock().put_back(index, Some(memory));
        }
    }
}

/// Returns each buffer with its offset, and the end of the last buffer.
fn lay_out<'a>(buffers: &[&'a [u8]]) -> (Vec<(usize, &'a [u8])>, usize) {
    let mut end = 0_usize;
    let mut placed = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        let start = end.next_multiple_of(PART_ALIGN);
        placed.push((start, *buffer));
        end = start + buffer.len();
    }
    (placed, end)
}
