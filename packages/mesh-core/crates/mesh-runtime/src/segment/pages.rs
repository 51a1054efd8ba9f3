//! A range of mapped pages: the only place for `mmap` and `madvise` in the crate.
#![expect(unsafe_code, reason = "maps memory and copies into it")]

use super::copy::{Chunk, Copier};
use super::stream_copy::copy_past_caches;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a huge page.
pub(super) const HUGE_LEN: usize = 2 << 20;

/// Requests huge pages for the whole huge pages of memory that has no pages yet.
///
/// 64 MB then take 32 page faults instead of 16,384. The kernel may not have any huge pages.
pub(super) fn advise_huge(range: Range<*mut MaybeUninit<u8>>) {
    let start = range.start.map_addr(|at| at.next_multiple_of(HUGE_LEN));
    let len = (range.end.addr() / HUGE_LEN * HUGE_LEN).saturating_sub(start.addr());
    if len > 0 {
        // SAFETY: the advice changes how memory of this range is backed, never its content.
        unsafe { libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE) };
    }
}

/// Returns the number of bytes of a page.
pub(super) fn page_len() -> usize {
    // SAFETY: sysconf reads no memory of this process.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(len).expect("every kernel has a page size")
}

/// Returns the smallest range of whole pages that covers `range`.
pub(super) fn whole_pages(range: &Range<usize>) -> Range<usize> {
    let page = page_len();
    range.start / page * page..range.end.next_multiple_of(page)
}

/// The visibility of writes to a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Every process that has mapped the file sees them.
    Shared,
    /// Only this mapping sees them: a page is copied when it is first written.
    Private,
}

/// Mapped pages of a file from its first byte, unmapped when dropped.
///
/// The file must be at least as long as the mapping for as long as the mapping exists, so that no
/// access faults. [`super::memory::Memory`] and [`super::cache::SegmentCache`] ensure this by
/// seals, and the provider of a [`crate::events::LogFile`] must not truncate it.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Pages` owns it alone.
unsafe impl Send for Pages {}
// SAFETY: through a shared reference only addresses and kernel calls are reachable, no bytes.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the first `len` bytes of `file`.
    pub(crate) fn map(file: BorrowedFd<'_>, len: usize, sharing: Sharing) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(page_len());
        let flags = match sharing {
            Sharing::Shared => libc::MAP_SHARED,
            Sharing::Private => libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is requested, so no existing mapping is replaced.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file.as_raw_fd(), 0) };
        Ok(Self { start: mapped(start)?, len })
    }

    /// Extends the mapping, which may move.
    pub(super) fn grow(&mut self, len: usize) -> io::Result<()> {
        let len = len.next_multiple_of(page_len());
        if len <= self.len {
            return Ok(());
        }
        // SAFETY: start and len are a mapping that we own; `&mut` proves that it is not in use now.
        let start = unsafe {
            libc::mremap(self.start.as_ptr().cast(), self.len, len, libc::MREMAP_MAYMOVE)
        };
        self.start = mapped(start)?;
        self.len = len;
        Ok(())
    }

    /// Returns the number of mapped bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of byte `offset`.
    pub(super) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.len, "offset {offset} is outside the mapping");
        // SAFETY: the offset is inside the mapping or one past its end.
        unsafe { self.start.add(offset) }
    }

    /// Copies each buffer to the offset next to it; they do not overlap.
    pub(super) fn write(&mut self, buffers: &[(usize, &[u8])], copier: &Copier) {
        let chunk = |(offset, bytes): &(usize, &[u8])| {
            assert!(bytes.len() <= self.len.saturating_sub(*offset), "{offset} is too far out");
            Chunk { from: bytes.as_ptr(), to: self.at(*offset).as_ptr(), len: bytes.len() }
        };
        let chunks: Vec<_> = buffers.iter().map(chunk).collect();
        // SAFETY: the targets are inside our mapping, which `&mut` lends to us alone, and the
        // sources are borrowed until we return; a slice given to us cannot be in the mapping, since
        // bytes of a mapping that is written are never lent out.
        unsafe { copier.copy(&chunks) };
    }

    /// Copies some bytes, which this process does not read soon, to an offset.
    pub(crate) fn put(&mut self, offset: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len.saturating_sub(offset), "{offset} is too far out");
        // SAFETY: the target is inside our mapping, which `&mut` lends to us alone; bytes of a
        // mapping that is written are never lent out, so the source is elsewhere.
        unsafe { copy_past_caches(bytes.as_ptr(), self.at(offset).as_ptr(), bytes.len()) };
    }

    /// Writes a number with release ordering: a reader that sees it also sees all bytes put before.
    pub(crate) fn publish(&self, offset: usize, number: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "{offset} is no place for it");
        // SAFETY: the eight bytes are inside the mapping, and aligned as it starts with a page.
        let place = unsafe { AtomicU64::from_ptr(self.at(offset).as_ptr().cast()) };
        place.store(number.to_le(), Ordering::Release);
    }

    /// Returns the first `len` bytes.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.len, "{len} bytes are more than is mapped");
        // SAFETY: the bytes are mapped, and they are not written while the owner reads.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), len) }.to_vec()
    }

    /// Enters existing pages into the page table, many at a time.
    ///
    /// This is only an optimization: on a kernel without support for it (before 5.14), each page is
    /// entered when it is first touched.
    pub(super) fn populate(&self, range: &Range<usize>) {
        let _ = self.advise(range, libc::MADV_POPULATE_READ);
    }

    /// Discards the writes to a private mapping: it shows the pages of the file again.
    pub(super) fn discard(&self, range: &Range<usize>) -> io::Result<()> {
        self.advise(range, libc::MADV_DONTNEED)
    }

    /// Faults in every page of `range` for writing without changing a byte.
    ///
    /// A private mapping gets its own copy of each page.
    pub(crate) fn populate_write(&self, range: &Range<usize>) -> io::Result<()> {
        match self.advise(range, libc::MADV_POPULATE_WRITE) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.touch(range);
                Ok(())
            }
            result => result,
        }
    }

    /// Like `populate_write`, for kernels before 5.14.
    pub(super) fn touch(&self, range: &Range<usize>) {
        for offset in whole_pages(range).step_by(page_len()) {
            // SAFETY: the byte is inside the mapping. Others may write it concurrently; an exchange
            // of equal values faults the page in for writing and loses no write.
            let byte = unsafe { AtomicU8::from_ptr(self.at(offset).as_ptr()) };
            let value = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Returns one byte as it is now.
    #[cfg(test)]
    pub(super) fn byte_at(&self, offset: usize) -> u8 {
        assert!(offset < self.len, "the byte is mapped");
        // SAFETY: the byte is inside the mapping, and a test writes from one thread only.
        unsafe { self.at(offset).read_volatile() }
    }

    fn advise(&self, range: &Range<usize>, advice: libc::c_int) -> io::Result<()> {
        let range = whole_pages(range);
        assert!(range.end <= self.len, "{range:?} is outside a mapping of {}", self.len);
        // SAFETY: the range is inside our mapping. Of the advices used here only DONTNEED changes
        // the bytes that are read, and its caller is the last owner of the bytes.
        match unsafe { libc::madvise(self.at(range.start).as_ptr().cast(), range.len(), advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: we own the mapping, and no borrow of it exists.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn mapped(start: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(start.cast()).expect("the kernel maps nothing at address zero unasked"))
}
