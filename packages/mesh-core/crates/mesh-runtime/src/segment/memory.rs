//! The memory of one segment: a memfd that only grows, and the sender's view of it.
#![expect(unsafe_code, reason = "creates, seals and sizes memfds")]

use super::copy::Copier;
use super::pages::{Pages, Sharing, page_len};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Prevents the descriptor from being made executable, if the kernel supports the flag (6.3).
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

/// A memfd and the sender's mapping of it.
///
/// The file only grows and is sealed against shrinking, so a reader that has checked a range
/// against its length may always access it. Freed pages leave a hole, not a shorter file.
#[derive(Debug)]
pub(super) struct Memory {
    fd: Arc<OwnedFd>,
    pages: Pages,
    /// Number of bytes from the start that have pages.
    resident: usize,
    /// Number of bytes from the start whose pages are in our page table.
    entered: usize,
}

impl Memory {
    /// Creates a segment with a capacity of `len` bytes, but without pages.
    pub(super) fn create(len: usize) -> io::Result<Self> {
        let fd = create_memfd()?;
        let len = file_len(len)?;
        set_len(fd.as_fd(), len)?;
        let pages = Pages::map(fd.as_fd(), len, Sharing::Shared)?;
        Ok(Self { fd: Arc::new(fd), pages, resident: 0, entered: 0 })
    }

    /// Returns the descriptor for readers.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Returns the number of bytes that occupy memory now.
    pub(super) fn resident(&self) -> usize {
        self.resident
    }

    /// Copies each buffer to the offset next to it; offsets increase and buffers do not overlap.
    ///
    /// Bytes with existing pages are copied through the mapping. Other bytes are written to the
    /// file: the kernel then need not clear the pages first, and a lack of memory is an error,
    /// whereas it would be a SIGBUS in the mapping.
    pub(super) fn fill(&mut self, buffers: &[(usize, &[u8])], copier: &Copier) -> io::Result<()> {
        let end = buffers.last().map_or(0, |(offset, buffer)| offset + buffer.len());
        if end > self.pages.len() {
            let len = file_len(end)?;
            set_len(self.fd.as_fd(), len)?;
            self.pages.grow(len)?;
        }
        let mut warm = Vec::with_capacity(buffers.len());
        for (offset, buffer) in buffers {
            let (old, new) =
                buffer.split_at(self.resident.clamp(*offset, offset + buffer.len()) - offset);
            warm.push((*offset, old));
            if let Err(error) = write_all(self.fd.as_fd(), new, offset + old.len()) {
                self.punch_from(self.resident, end)?;
                return Err(error);
            }
        }
        let enter = self.entered..self.resident.min(end);
        if !enter.is_empty() {
            self.pages.populate(&enter);
            self.entered = enter.end;
        }
        self.pages.write(&warm, copier);
        self.resident = self.resident.max(end.next_multiple_of(page_len()));
        Ok(())
    }

    /// Appends bytes at the end of the previous ones.
    ///
    /// Bytes for new pages are written to the file, even if the first of these pages contains some
    /// bytes already: pages that are written only once need not be in the page table.
    pub(super) fn append(&mut self, at: usize, bytes: &[u8], copier: &Copier) -> io::Result<()> {
        let end = at + bytes.len();
        if end <= self.resident {
            return self.fill(&[(at, bytes)], copier);
        }
        if end > self.pages.len() {
            let len = file_len(end)?;
            set_len(self.fd.as_fd(), len)?;
            self.pages.grow(len)?;
        }
        write_all(self.fd.as_fd(), bytes, at)?;
        self.resident = end.next_multiple_of(page_len());
        Ok(())
    }

    /// Returns the first `len` bytes, all of which were written.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        self.pages.read(len)
    }

    /// Frees the pages, including pages that other processes have mapped.
    pub(super) fn punch(&mut self) -> io::Result<()> {
        self.punch_from(0, self.resident)?;
        (self.resident, self.entered) = (0, 0);
        Ok(())
    }

    fn punch_from(&self, start: usize, end: usize) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (start, len) = (offset(start)?, offset(end.saturating_sub(start))?);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the call changes a descriptor that we own.
        while unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, start, len) } != 0 {
            retry(io::Error::last_os_error())?;
        }
        Ok(())
    }
}

/// Returns the length of a segment that another process offers.
///
/// # Errors
/// `InvalidData` if the owner could shrink the file while it is mapped here: an access would then
/// raise SIGBUS.
pub(super) fn checked_len(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: the call reads the seals of a descriptor that we own.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the descriptor is not memory sealed against shrinking",
        ));
    }
    Ok(File::from(fd.try_clone()?).metadata()?.len())
}

fn create_memfd() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let fd = match memfd(flags | MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => memfd(flags)?,
        result => result?,
    };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: the call changes a descriptor that we own.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(fd),
        _ => Err(io::Error::last_os_error()),
    }
}

fn memfd(flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"mesh-segment".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the file length for `len` bytes, a power of two.
///
/// Address space costs nothing, and with a power of two, files, mappings and the views of readers
/// rarely have to grow.
fn file_len(len: usize) -> io::Result<usize> {
    let len = len.max(page_len()).checked_next_power_of_two();
    len.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
}

fn set_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = offset(len)?;
    // SAFETY: the call changes a descriptor that is open for as long as it is borrowed.
    match unsafe { libc::ftruncate(fd.as_raw_fd(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8], mut at: usize) -> io::Result<()> {
    while !bytes.is_empty() {
        let start = offset(at)?;
        // SAFETY: the kernel reads inside the slice only.
        let count =
            unsafe { libc::pwrite(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), start) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, at) = (&bytes[count..], at + count),
            Err(_) => retry(io::Error::last_os_error())?,
        }
    }
    Ok(())
}

fn offset(at: usize) -> io::Result<libc::off_t> {
    libc::off_t::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Ignores an interruption by a signal, so that the caller retries.
fn retry(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}
