//! A received message: slices of one private view.
#![expect(unsafe_code, reason = "lends the bytes of a mapping as slices")]

use super::cache::{ViewKey, ViewPool};
use super::pagemap::PageMap;
use super::pages::Pages;
use mesh_wire::frame::Part;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Called when the last slice of a message is dropped.
pub type OnDrop = Box<dyn FnOnce() + Send>;

/// The view that the slices of one message share.
pub(super) struct Message {
    /// Taken when the message is dropped.
    pages: Option<Pages>,
    /// The range of the view that the message uses.
    range: Range<usize>,
    key: ViewKey,
    /// The generation of the segment.
    generation: u32,
    view_pool: Weak<ViewPool>,
    /// Whether a caller was given a way to write to the view.
    may_be_written: AtomicBool,
    /// Locked only because a message is shared between threads and the closure is not `Sync`.
    on_drop: Mutex<Option<OnDrop>>,
    /// The process that opened the message.
    ///
    /// A fork of it must neither reuse the view nor release it.
    pid: u32,
}

impl Message {
    pub(super) fn new(
        pages: Pages,
        range: Range<usize>,
        (key, generation): (ViewKey, u32),
        view_pool: &Arc<ViewPool>,
        on_drop: OnDrop,
    ) -> Self {
        assert!(range.end <= pages.len(), "the view covers the message");
        let (view_pool, on_drop) = (Arc::downgrade(view_pool), Mutex::new(Some(on_drop)));
        let pid = std::process::id();
        let (pages, may_be_written) = (Some(pages), AtomicBool::new(false));
        Self { pages, range, key, generation, view_pool, may_be_written, on_drop, pid }
    }

    /// Returns the start address of the view.
    pub(super) fn address(&self) -> usize {
        self.pages().at(0).as_ptr() as usize
    }

    /// Returns the part that consists of `len` bytes from an address, if they are in this message.
    pub(super) fn part_at(&self, address: usize, len: usize) -> Option<Part> {
        let start = address.checked_sub(self.address())?;
        let is_inside = start >= self.range.start && len <= self.range.end.checked_sub(start)?;
        let ViewKey { owner, segment, .. } = self.key;
        let (generation, offset, len) = (self.generation, start as u64, len as u64);
        is_inside.then_some(Part { owner, segment, generation, offset, len })
    }

    /// Returns the number of bytes from the start of the first part to the end of the last one.
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Copies every page that still belongs to the sender.
    ///
    /// See [`super::SegmentCache::prepare_fork`].
    pub(super) fn make_private(&self) -> io::Result<()> {
        self.may_be_written.store(true, Ordering::Relaxed);
        self.pages().populate_write(&self.range)
    }

    /// Whether no page of `range` was written, as far as `pagemap` can determine.
    pub(super) fn is_clean(&self, pagemap: &PageMap, range: &Range<usize>) -> bool {
        !self.may_be_written.load(Ordering::Relaxed) || pagemap.is_clean(self.pages(), range)
    }

    pub(super) fn pages(&self) -> &Pages {
        self.pages.as_ref().expect("a message has its view until it is dropped")
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let on_drop = self.on_drop.get_mut().expect("nobody panics with this lock").take();
        if self.pid != std::process::id() {
            // The parent still holds the message. The resources that the closure would use are not
            // ours.
            std::mem::forget(on_drop);
            return;
        }
        if let (Some(view_pool), Some(pages)) = (self.view_pool.upgrade(), self.pages.take()) {
            let written = self.may_be_written.get_mut().then_some(&self.range);
            view_pool.put_back(self.key, pages, written);
        }
        on_drop.expect("a message is dropped once")();
    }
}

/// One part of a received message: bytes that belong to the receiver.
///
/// Writes to them are not visible to other processes, and later writes of the sender are not
/// visible here. The view exists until the last part of its message is dropped.
pub struct Mapping {
    message: Arc<Message>,
    start: usize,
    len: usize,
}

impl Mapping {
    /// Creates a mapping of `range` of the view; the caller must not lend any byte twice.
    pub(super) fn new(message: &Arc<Message>, range: Range<usize>) -> Self {
        assert!(range.end <= message.range.end, "a part lies in its message");
        Self { message: Arc::clone(message), start: range.start, len: range.len() }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the mapping is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a pointer to the first byte; intended for a caller that lends the bytes to another
    /// language.
    ///
    /// The bytes may be read and written as long as the mapping exists, but not while a slice of it
    /// is in use.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.message.may_be_written.store(true, Ordering::Relaxed);
        self.start()
    }

    /// Like [`Mapping::as_mut_ptr`], for a caller that only reads.
    ///
    /// If no caller can write, the message need not be checked for written pages when it is
    /// dropped.
    pub fn as_ptr(&self) -> *const u8 {
        self.start()
    }

    fn start(&self) -> *mut u8 {
        self.message.pages().at(self.start).as_ptr()
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was checked against a file that cannot shrink, no other mapping has
        // these bytes, and the sender does not touch the pages until the message is released.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` is the only way to these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("start", &self.start).field("len", &self.len).finish()
    }
}
