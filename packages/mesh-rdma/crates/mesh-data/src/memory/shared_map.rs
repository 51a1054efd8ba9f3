//! Memory files that several processes map; a descriptor is all that they exchange.
#![expect(unsafe_code, reason = "maps memory")]

use crate::connection::close_on_fork::Descriptor;
use crate::span::Span;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// A mapped memory file.
#[derive(Debug)]
pub struct SharedMap {
    fd: Descriptor,
    span: Span,
}

impl SharedMap {
    /// Creates a memory file of `len` zero bytes, whose pages are allocated on first use.
    ///
    /// # Errors
    /// The system does not provide the memory or a descriptor.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // The seals guarantee that the size does not change while other processes map the file.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::map(fd, len, true)
    }

    /// Maps a memory file that another process has created.
    ///
    /// # Errors
    /// It cannot be mapped, or not with the requested access, or is shorter than `len`.
    pub fn open(fd: OwnedFd, len: usize, is_writable: bool) -> io::Result<Self> {
        let actual = rustix::fs::fstat(&fd)?.st_size;
        let is_whole = u64::try_from(actual).is_ok_and(|actual| actual >= len as u64);
        if !is_whole {
            return Err(io::Error::other(format!("a memory file of {actual} bytes, not {len}")));
        }
        Self::map(fd, len, is_writable)
    }

    fn map(fd: OwnedFd, len: usize, is_writable: bool) -> io::Result<Self> {
        let read = ProtFlags::READ;
        let access = if is_writable { read | ProtFlags::WRITE } else { read };
        // SAFETY: this creates a new mapping of a file and replaces no existing one.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0) }?;
        Ok(Self { fd: Descriptor::new(fd), span: Span { start: start as usize, len } })
    }

    /// Prevents all other processes from writing from now on; this mapping remains writable.
    ///
    /// # Errors
    /// The kernel is older than 5.1.
    pub fn keep_others_from_writing(&self) -> io::Result<()> {
        Ok(fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE)?)
    }

    /// Allocates the pages of a part now, so that no later access has to wait for that.
    pub fn populate(&self, part: Span) {
        debug_assert!(self.span.contains(part));
        // SAFETY: the part is within this mapping. Older kernels refuse the call, and then allocate
        // each page on first access.
        let _ = unsafe { madvise(part.start as *mut _, part.len, Advice::LinuxPopulateWrite) };
    }

    /// Frees the pages of a part, which then reads as zeros.
    pub fn empty(&self, offset: u64, len: u64) {
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // If this fails, the pages remain allocated until the part is reused.
        let _ = rustix::fs::fallocate(&self.fd, hole, offset, len);
    }

    /// The location in this process.
    pub fn span(&self) -> Span {
        self.span
    }

    /// The word at `index`, in units of eight bytes.
    ///
    /// # Panics
    /// Panics if the index is out of range.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        let part = self.span.part(index * 8, 8).expect("a word of this map");
        // SAFETY: it is mapped as long as `self`, page alignment implies word alignment, and all
        // accesses are atomic.
        unsafe { AtomicU64::from_ptr(part.start as *mut u64) }
    }
}

impl AsFd for SharedMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the address is no longer in use, because all of its users hold this map.
        let _ = unsafe { munmap(self.span.start as *mut _, self.span.len) };
    }
}
