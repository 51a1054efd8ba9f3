//! The receiver's side: segments of other processes, and their reusable views.

use super::memory::checked_len;
use super::message::{Mapping, Message, OnDrop};
use super::pagemap::PageMap;
use super::pages::{Pages, Sharing};
use mesh_wire::frame::{Part, SegmentRef, UNKNOWN_PROC};
use mesh_wire::id::ProcId;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use thiserror::Error;

/// The limits of a [`SegmentCache`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheLimits {
    /// Number of segments, and therefore of descriptors, kept for one owner.
    pub segments_max: usize,
    /// Views of one segment that are kept mapped while no message uses them.
    ///
    /// They take address space and page tables (0.2 % of the payload), but no memory.
    pub idle_views_max: usize,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self { segments_max: 1024, idle_views_max: 2 }
    }
}

/// The reason why a message cannot be opened or a segment cannot be registered.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The parts are in a segment whose descriptor never arrived or was forgotten.
    #[error("segment {segment} of process {owner} is unknown: announce it before it is used")]
    Unknown {
        /// The sender of the message.
        owner: ProcId,
        /// The segment in the parts.
        segment: u32,
    },
    /// [`super::SegmentPool::fill`] would not create these parts.
    #[error("parts of process {owner} are refused, {reason}: check that both sides match")]
    Refused {
        /// The sender of the message.
        owner: ProcId,
        /// The defect of the parts.
        reason: &'static str,
    },
    /// The owner announces more segments than any pool has.
    #[error("process {owner} announces more than {max} segments: raise segments_max")]
    TooMany {
        /// The owner.
        owner: ProcId,
        /// [`CacheLimits::segments_max`].
        max: usize,
    },
    /// The cache belongs to the process from which this one was forked.
    #[error("the segment cache belongs to the parent process: create another one after a fork")]
    Forked,
    /// The kernel refused.
    #[error("cannot map a segment of process {owner}: {source}")]
    Io {
        /// The owner of the segment.
        owner: ProcId,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::Io { source, .. } => source.kind(),
            OpenError::Unknown { .. } => io::ErrorKind::NotFound,
            OpenError::Refused { .. } => io::ErrorKind::InvalidData,
            OpenError::TooMany { .. } => io::ErrorKind::QuotaExceeded,
            OpenError::Forked => io::ErrorKind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// The announced segment that a view shows. A segment that is announced again is a different one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ViewKey {
    pub(super) owner: ProcId,
    pub(super) segment: u32,
    serial: u64,
}

/// Unmodified bytes of an open message: every process that has the owner's segment sees them there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The location of the bytes in the segment of the owner.
    pub part: Part,
    /// Length in bytes of the message that contains them.
    ///
    /// The owner keeps the whole message for them.
    pub message_len: usize,
}

/// One announced segment.
struct KnownSegment {
    serial: u64,
    fd: Arc<OwnedFd>,
    /// The last known length of the file. It never decreases.
    len: u64,
    /// Clean views that no message uses.
    idle: Vec<Pages>,
}

#[derive(Default)]
struct Segments {
    known: HashMap<ProcId, HashMap<u32, KnownSegment>>,
    serial: u64,
    /// Every open message, by the start address of its view.
    open: BTreeMap<usize, Weak<Message>>,
}

/// The state to which messages return their views; it outlives the cache while one of them is open.
pub(super) struct ViewPool {
    limits: CacheLimits,
    pagemap: PageMap,
    segments: Mutex<Segments>,
}

impl ViewPool {
    fn lock(&self) -> MutexGuard<'_, Segments> {
        // No code panics between two changes that belong together.
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the view of a dropped message, for reuse.
    ///
    /// `written` is the range that may have been written.
    pub(super) fn put_back(&self, key: ViewKey, pages: Pages, written: Option<&Range<usize>>) {
        // This must precede any reuse of the view: written pages belong to the old message.
        let is_clean = written.is_none_or(|range| self.pagemap.wipe(&pages, range).is_ok());
        let mut segments = self.lock();
        segments.open.remove(&(pages.at(0).as_ptr() as usize));
        let known = segments.known.get_mut(&key.owner).and_then(|all| all.get_mut(&key.segment));
        let is_current = |known: &&mut KnownSegment| is_clean && known.serial == key.serial;
        if let Some(known) = known.filter(is_current)
            && known.idle.len() < self.limits.idle_views_max
        {
            known.idle.push(pages);
            return;
        }
        // Unmapping takes long, so the lock must not be held.
        drop(segments);
        drop(pages);
    }
}

/// The segments that other processes of the host have announced to this one.
///
/// All methods may be called from any thread.
pub struct SegmentCache {
    view_pool: Arc<ViewPool>,
    pid: u32,
}

impl SegmentCache {
    /// Creates a cache without segments.
    pub fn new(limits: CacheLimits) -> Self {
        let view_pool = ViewPool {
            limits,
            pagemap: PageMap::open(),
            segments: Mutex::new(Segments::default()),
        };
        Self { view_pool: Arc::new(view_pool), pid: std::process::id() }
    }

    /// Registers the descriptor of a segment; a later one for the same segment replaces it.
    ///
    /// # Errors
    /// [`OpenError::Refused`] if the owner could shrink the file while it is mapped here,
    /// [`OpenError::TooMany`] if it has announced too many segments.
    pub fn learn(
        &self,
        owner: ProcId,
        segment: u32,
        fd: impl Into<Arc<OwnedFd>>,
    ) -> Result<(), OpenError> {
        self.check_process()?;
        let fd = fd.into();
        let len = checked_len(&fd).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => {
                OpenError::Refused { owner, reason: "the segment is not sealed against shrinking" }
            }
            _ => OpenError::Io { owner, source },
        })?;
        let mut segments = self.view_pool.lock();
        segments.serial += 1;
        let serial = segments.serial;
        let of_owner = segments.known.entry(owner).or_default();
        let max = self.view_pool.limits.segments_max;
        if of_owner.len() >= max && !of_owner.contains_key(&segment) {
            return Err(OpenError::TooMany { owner, max });
        }
        let known = KnownSegment { serial, fd, len, idle: Vec::new() };
        let replaced = of_owner.insert(segment, known);
        drop(segments);
        drop(replaced);
        Ok(())
    }

    /// Opens parts of one generation of a segment as private bytes, one [`Mapping`] for each part.
    ///
    /// `on_drop` is called once, when the last of them is dropped, by the thread that drops it. If
    /// this returns an error, it is not called.
    ///
    /// # Errors
    /// [`OpenError`]. Parts are first checked against the actual size of the segment, so that false
    /// offsets from a peer cause an error and not a SIGBUS.
    pub fn open(&self, parts: &[Part], on_drop: OnDrop) -> Result<Vec<Mapping>, OpenError> {
        self.check_process()?;
        let (segment_ref, range) = extent(parts)?;
        let (key, pages) = self.view(segment_ref.owner, segment_ref.segment, range.end)?;
        let of = (key, segment_ref.generation);
        let message = Arc::new(Message::new(pages, range, of, &self.view_pool, on_drop));
        self.view_pool.lock().open.insert(message.address(), Arc::downgrade(&message));
        let byte = |at| usize::try_from(at).expect("the extent was converted before");
        let mapping =
            |part: &Part| Mapping::new(&message, byte(part.offset)..byte(part.offset + part.len));
        Ok(parts.iter().map(mapping).collect())
    }

    /// Returns the location of these bytes in the owner's segment, if they are unmodified.
    ///
    /// They must be in an open message, and none of their pages may have been written since it
    /// arrived.
    ///
    /// Concurrent writes to the bytes have no effect on the result: a write makes a page private.
    pub fn received(&self, bytes: &[u8]) -> Option<Received> {
        self.check_process().ok()?;
        let address = bytes.as_ptr() as usize;
        let message = {
            let segments = self.view_pool.lock();
            let (_, message) = segments.open.range(..=address).next_back()?;
            message.upgrade()?
        };
        let part = message.part_at(address, bytes.len())?;
        let start = usize::try_from(part.offset).expect("it is an offset in a mapping");
        let is_clean = message.is_clean(&self.view_pool.pagemap, &(start..start + bytes.len()));
        is_clean.then(|| Received { part, message_len: message.len() })
    }

    /// Drops a segment that its owner no longer has. Open messages stay valid.
    pub fn forget(&self, owner: ProcId, segment: u32) {
        if self.check_process().is_ok() {
            let mut segments = self.view_pool.lock();
            let known = segments.known.get_mut(&owner).and_then(|all| all.remove(&segment));
            drop(segments);
            drop(known);
        }
    }

    /// Drops all segments of a process that died. Open messages stay valid.
    pub fn owner_died(&self, owner: ProcId) {
        if self.check_process().is_ok() {
            let known = self.view_pool.lock().known.remove(&owner);
            drop(known);
        }
    }

    /// Gives every open message its own copy of its pages, so that a fork may still read them.
    ///
    /// A forked child inherits the views, but the sender waits only for the parent: once the parent
    /// has released a message, its pages are reused and the child would see the next message in the
    /// old view. Call this in the parent before it forks; it takes as long as copying all open
    /// messages.
    ///
    /// # Errors
    /// The error of the kernel, usually a lack of memory.
    pub fn prepare_fork(&self) -> io::Result<()> {
        if self.check_process().is_err() {
            return Ok(());
        }
        let open: Vec<_> = self.view_pool.lock().open.values().filter_map(Weak::upgrade).collect();
        open.iter().try_for_each(|message| message.make_private())
    }

    fn check_process(&self) -> Result<(), OpenError> {
        if self.pid == std::process::id() { Ok(()) } else { Err(OpenError::Forked) }
    }

    /// Returns a private view of at least `len` bytes of a segment: a warm one, or a new one.
    fn view(&self, owner: ProcId, segment: u32, len: usize) -> Result<(ViewKey, Pages), OpenError> {
        let mut segments = self.view_pool.lock();
        let known = segments.known.get_mut(&owner).and_then(|all| all.get_mut(&segment));
        let known = known.ok_or(OpenError::Unknown { owner, segment })?;
        let io = |source| OpenError::Io { owner, source };
        if len as u64 > known.len {
            known.len = checked_len(&known.fd).map_err(io)?;
            if len as u64 > known.len {
                let reason = "they lie beyond the end of the segment";
                return Err(OpenError::Refused { owner, reason });
            }
        }
        let key = ViewKey { owner, segment, serial: known.serial };
        let idle = known.idle.pop();
        let (fd, file_len) = (Arc::clone(&known.fd), known.len);
        drop(segments);
        match idle {
            Some(pages) if pages.len() >= len => Ok((key, pages)),
            // Either the view is too short because the segment grew, or none is idle. Map the whole
            // file, because the view will be reused.
            _ => {
                let all = usize::try_from(file_len).unwrap_or(len);
                let pages = Pages::map(fd.as_fd(), all, Sharing::Private).map_err(io)?;
                Ok((key, pages))
            }
        }
    }
}

/// Returns the generation of a segment that contains the parts, and the range that covers them.
fn extent(parts: &[Part]) -> Result<(SegmentRef, Range<usize>), OpenError> {
    let owner = parts.first().map_or(UNKNOWN_PROC, |part| part.owner);
    let refused = |reason| OpenError::Refused { owner, reason };
    let mut parts = parts.to_vec();
    parts.sort_by_key(|part| part.offset);
    let first = parts.first().ok_or_else(|| refused("there are none"))?;
    let segment_ref = first.segment_ref().ok_or_else(|| refused("they are not in a segment"))?;
    let start = usize::try_from(first.offset).map_err(|_| refused("they are too far out"))?;
    let mut end = first.offset;
    for part in &parts {
        if part.segment_ref() != Some(segment_ref) {
            return Err(refused("they belong to several messages"));
        }
        // Two slices of the same bytes would see each other's writes.
        if part.offset < end {
            return Err(refused("they overlap"));
        }
        end = part.offset.checked_add(part.len).ok_or_else(|| refused("they are too long"))?;
    }
    // This permits rounding up to whole pages.
    match usize::try_from(end) {
        Ok(end) if end <= isize::MAX as usize / 2 => Ok((segment_ref, start..end)),
        _ => Err(refused("they are too long")),
    }
}
