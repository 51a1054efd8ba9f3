//! Memory that several processes map: a descriptor is all they need of each other.
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
    /// Makes one of `len` bytes, all zero and none of them taken from the system yet.
    ///
    /// # Errors
    /// The system gives no memory or no descriptor.
    pub fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, len as u64)?;
        // What others map can then not be cut off under them.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Self::map(fd, len, true)
    }

    /// Maps one that another process has made.
    ///
    /// # Errors
    /// It cannot be mapped, or not for writing where that is asked for, or is not that long.
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
        // SAFETY: a new mapping of a file; nothing is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0) }?;
        Ok(Self { fd: Descriptor::new(fd), span: Span { start: start as usize, len } })
    }

    /// Lets nobody else write from now on; this mapping stays as it is.
    ///
    /// # Errors
    /// The system is older than 5.1.
    pub fn keep_others_from_writing(&self) -> io::Result<()> {
        Ok(fcntl_add_seals(&self.fd, SealFlags::FUTURE_WRITE)?)
    }

    /// Takes the memory of a part from the system now, so that nobody waits for it later.
    pub fn populate(&self, part: Span) {
        debug_assert!(self.span.contains(part));
        // SAFETY: the part is of this mapping. Older systems refuse it: then it comes page by page.
        let _ = unsafe { madvise(part.start as *mut _, part.len, Advice::LinuxPopulateWrite) };
    }

    /// Gives the memory of a part back to the system: it reads as zeros.
    pub fn empty(&self, offset: u64, len: u64) {
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // What stays is taken when the part is used again.
        let _ = rustix::fs::fallocate(&self.fd, hole, offset, len);
    }

    /// Where it is in this process.
    pub fn span(&self) -> Span {
        self.span
    }

    /// The word at `index`, counted in words of eight bytes.
    ///
    /// # Panics
    /// There is no such word.
    pub fn word(&self, index: usize) -> &AtomicU64 {
        let part = self.span.part(index * 8, 8).expect("a word of this map");
        // SAFETY: mapped for as long as `self`, aligned as pages are, and used as atomics only.
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
        // SAFETY: nobody has the address any more: all who use it hold this map.
        let _ = unsafe { munmap(self.span.start as *mut _, self.span.len) };
    }
}
