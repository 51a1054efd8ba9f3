//! What a receiver holds of a message: slices of one private view.
#![expect(unsafe_code, reason = "lends the bytes of a mapping as slices")]

use super::cache::{Shelf, ViewKey};
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
    /// What of the view the message uses.
    range: Range<usize>,
    key: ViewKey,
    /// Which use of the segment.
    generation: u32,
    shelf: Weak<Shelf>,
    /// Whether somebody was given a way to write to the view.
    may_be_written: AtomicBool,
    /// Behind a lock only because a message is shared between threads and the closure is not.
    on_drop: Mutex<Option<OnDrop>>,
    /// The process that opened it; a fork of it must neither reuse the view nor give it back.
    pid: u32,
}

impl Message {
    pub(super) fn new(
        pages: Pages,
        range: Range<usize>,
        (key, generation): (ViewKey, u32),
        shelf: &Arc<Shelf>,
        on_drop: OnDrop,
    ) -> Self {
        assert!(range.end <= pages.len(), "the view covers the message");
        let (shelf, on_drop) = (Arc::downgrade(shelf), Mutex::new(Some(on_drop)));
        let pid = std::process::id();
        let (pages, may_be_written) = (Some(pages), AtomicBool::new(false));
        Self { pages, range, key, generation, shelf, may_be_written, on_drop, pid }
    }

    /// Where the view begins.
    pub(super) fn address(&self) -> usize {
        self.pages().at(0).as_ptr() as usize
    }

    /// The part that `len` bytes from an address on are, if they lie in this message.
    pub(super) fn part_at(&self, address: usize, len: usize) -> Option<Part> {
        let start = address.checked_sub(self.address())?;
        let is_inside = start >= self.range.start && len <= self.range.end.checked_sub(start)?;
        let ViewKey { owner, segment, .. } = self.key;
        let (generation, offset, len) = (self.generation, start as u64, len as u64);
        is_inside.then_some(Part { owner, segment, generation, offset, len })
    }

    /// Bytes from the first part's first to the last part's last.
    pub(super) fn len(&self) -> usize {
        self.range.len()
    }

    /// Copies every page that still is the sender's; see [`super::SegmentCache::prepare_fork`].
    pub(super) fn own(&self) -> io::Result<()> {
        self.may_be_written.store(true, Ordering::Relaxed);
        self.pages().own(&self.range)
    }

    /// Whether no page of `range` was written, as far as `pagemap` can tell.
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
            // The parent still holds the message. What the call would use is not ours to touch.
            std::mem::forget(on_drop);
            return;
        }
        if let (Some(shelf), Some(pages)) = (self.shelf.upgrade(), self.pages.take()) {
            let written = self.may_be_written.get_mut().then_some(&self.range);
            shelf.put_back(self.key, pages, written);
        }
        on_drop.expect("a message is dropped once")();
    }
}

/// One part of a received message: bytes that belong to the receiver.
///
/// Writing to them is seen by nobody else, and nothing that the sender does afterwards is seen
/// here. The view lives until the last part of its message is dropped.
pub struct Mapping {
    message: Arc<Message>,
    start: usize,
    len: usize,
}

impl Mapping {
    /// The bytes `range` of the view; the caller lends no byte twice.
    pub(super) fn new(message: &Arc<Message>, range: Range<usize>) -> Self {
        assert!(range.end <= message.range.end, "a part lies in its message");
        Self { message: Arc::clone(message), start: range.start, len: range.len() }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte, for a caller that lends the bytes to another language.
    ///
    /// They may be read and written for as long as the mapping lives, but not while a slice of it
    /// is in use.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.message.may_be_written.store(true, Ordering::Relaxed);
        self.start()
    }

    /// As [`Mapping::as_mut_ptr`], for a caller that only reads. Where nobody writes, nobody has to
    /// look for written pages when the message is dropped.
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
        // these bytes, and the sender leaves the pages alone until the message is given back.
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
