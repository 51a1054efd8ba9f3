//! The sender's side: segments that are filled, read by others, and filled again.

use super::copy::{Copier, THREADS_MAX};
use super::landing::Landing;
use super::memory::Memory;
use super::slots::{Refusal, Slots, Taken};
use mesh_wire::frame::Part;
use mesh_wire::id::ProcId;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;

/// Where parts begin: a cache line, and what vector instructions and torch ask for.
const PART_ALIGN: usize = 64;

/// How much memory a [`SegmentPool`] takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentLimits {
    /// Bytes of memory, in use and idle. What does not fit is refused: [`FillError::Full`].
    pub bytes_max: usize,
    /// Bytes kept warm while nobody uses them. The segment that was last given back is kept even
    /// when it alone is larger; [`SegmentPool::sweep`] takes it in the end.
    pub idle_bytes_max: usize,
    /// Segments, and so descriptors here and in every reader.
    pub segments_max: usize,
    /// Threads that copy one large message, the caller's among them; never more than there are
    /// cores.
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

/// Why buffers were not copied into a segment.
#[derive(Debug, Error)]
pub enum FillError {
    /// Readers hold too much. Send the bytes through the socket, or try again after a release.
    #[error("shared segments are full ({bytes_in_use} bytes in use): readers hold what they got")]
    Full {
        /// Bytes that readers hold.
        bytes_in_use: usize,
    },
    /// The message is larger than the pool may ever be. Send the bytes through the socket.
    #[error("{len} bytes do not fit in shared segments of {max} bytes: raise bytes_max")]
    TooLarge {
        /// Bytes of the message.
        len: usize,
        /// [`SegmentLimits::bytes_max`].
        max: usize,
    },
    /// A message for nobody would never be given back.
    #[error("a shared segment needs a reader: name the processes that it is for")]
    NoReaders,
    /// The pool belongs to the process that this one was forked from.
    #[error("the segment pool belongs to the parent process: make a new one after a fork")]
    Forked,
    /// The kernel refused, usually for want of memory or descriptors.
    #[error("cannot take memory for a shared segment: {0}")]
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

/// A message that lies in a segment and waits for its readers.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The segment.
    pub segment: u32,
    /// Which use of the segment this is; a release names it.
    pub generation: u32,
    /// What each reader must have been given once before it opens the parts.
    pub fd: Arc<OwnedFd>,
    /// Where the buffers lie, in their order.
    pub parts: Vec<Part>,
}

/// What a pool holds and has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SegmentStats {
    /// Segments made so far; they are kept, with or without memory.
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
/// All methods may be called from any thread; copies are made outside the lock.
pub struct SegmentPool {
    owner: ProcId,
    limits: SegmentLimits,
    copier: Copier,
    slots: Mutex<Slots>,
    pid: u32,
}

impl SegmentPool {
    /// The pool of process `owner`, without segments yet.
    pub fn new(owner: ProcId, limits: SegmentLimits) -> Self {
        let copier = Copier::new(limits.copy_threads_max);
        Self { owner, limits, copier, slots: Mutex::default(), pid: std::process::id() }
    }

    /// Copies `buffers` into one segment, which `readers` hold until each has released it; one that
    /// is named several times releases it as often.
    ///
    /// A reader that the message could not be sent to must be released by the caller.
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
        let Taken { index, memory, victims } = self.take(len)?;
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

    /// Takes a segment for a message of `len` bytes that is yet to come, or plain memory when there
    /// is no room for it.
    pub fn land(self: &Arc<Self>, len: usize) -> Landing {
        let taken = if self.is_forked() { None } else { self.take(len).ok() };
        taken.map_or_else(
            || Landing::plain(len),
            |Taken { index, memory, victims }| {
                self.empty(victims);
                Landing::shared(len, Arc::clone(self), index, memory)
            },
        )
    }

    /// Copies bytes to where those before them end in a segment that was taken for `len` bytes.
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

    /// Returns a segment that was taken and is not used after all.
    pub(super) fn give_up(&self, index: usize, memory: Option<Memory>) {
        if !self.is_forked() {
            self.lock().put_back(index, memory);
        }
    }

    /// Lets `readers` hold a use of a segment too; each has to release it. `false` when that use is
    /// over: then nothing is held, and a release changes nothing.
    ///
    /// For bytes that a reader has handed back, or that are handed on while somebody holds them.
    pub fn hold(&self, segment: u32, generation: u32, readers: &[ProcId]) -> bool {
        !self.is_forked() && self.lock().hold(segment as usize, generation, readers)
    }

    /// Whether somebody holds this use of a segment.
    pub fn is_held(&self, segment: u32, generation: u32) -> bool {
        !self.is_forked() && self.lock().is_read(segment as usize, generation)
    }

    /// Notes that `reader` has let go once. Repeated, late and unknown releases change nothing.
    pub fn release(&self, segment: u32, generation: u32, reader: ProcId) {
        if self.is_forked() {
            return;
        }
        let mut slots = self.lock();
        slots.release(segment as usize, generation, reader);
        let victims = slots.take_over(self.limits.idle_bytes_max);
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
        let victims = slots.take_over(self.limits.idle_bytes_max);
        drop(slots);
        self.empty(victims);
    }

    /// Gives back the memory that nobody has used since the sweep before.
    ///
    /// To be called every few seconds, so that a process which has stopped sending keeps nothing.
    pub fn sweep(&self) {
        if self.is_forked() {
            return;
        }
        let victims = self.lock().take_stale();
        self.empty(victims);
    }

    /// What the pool holds and has done.
    pub fn stats(&self) -> SegmentStats {
        if self.is_forked() { SegmentStats::default() } else { self.lock().stats() }
    }

    /// In a fork the memory is that of the parent, and a lock may be held by a thread that is
    /// not there.
    fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        // No code panics between two changes that belong together.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, len: usize) -> Result<Taken, FillError> {
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

    /// Gives the memory of segments back to the kernel, which takes long: not under the lock.
    fn empty(&self, victims: Vec<(usize, Memory)>) {
        for (index, mut memory) in victims {
            // Should it fail, the memory stays counted and is tried again.
            let _ = memory.punch();
            self.lock().put_back(index, Some(memory));
        }
    }
}

/// Each buffer with the offset where it begins, and where the last one ends.
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
