//! The memory of one segment: a memfd that only grows, and the sender's view of it.
#![expect(unsafe_code, reason = "creates, seals and sizes memfds")]

use super::pages::{Pages, Sharing, page_len};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// Refuses descriptors made executable, where the kernel knows the flag (6.3).
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

/// Pages taken from the kernel at a time. A signal makes the kernel undo the step it is in, so a
/// step must be short next to the period of a profiler's timer.
const STEP_LEN: usize = 4 << 20;

/// A memfd and the sender's mapping of it.
///
/// The file is as long as the longest message it ever held and is sealed against shrinking, so a
/// reader that has checked a range against the length may touch it for ever. Pages that are given
/// back leave a hole, not a shorter file.
#[derive(Debug)]
pub(super) struct Memory {
    fd: Arc<OwnedFd>,
    pages: Pages,
    /// Bytes from the start that have pages and are in our page table.
    resident: usize,
}

impl Memory {
    /// A new segment of at least `len` bytes without pages.
    pub(super) fn create(len: usize) -> io::Result<Self> {
        let fd = create_memfd()?;
        let len = len.max(1).next_multiple_of(page_len());
        set_len(fd.as_fd(), len)?;
        let pages = Pages::map(fd.as_fd(), len, Sharing::Shared)?;
        Ok(Self { fd: Arc::new(fd), pages, resident: 0 })
    }

    /// The descriptor to hand to readers.
    pub(super) fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Bytes that take up memory now.
    pub(super) fn resident(&self) -> usize {
        self.resident
    }

    /// Makes sure that the first `len` bytes have pages.
    ///
    /// Taking them here turns a lack of memory into an error; taking them by writing would turn
    /// it into a SIGBUS. It is faster too: one call a step instead of one fault a page.
    pub(super) fn reserve(&mut self, len: usize) -> io::Result<()> {
        let len = len.next_multiple_of(page_len());
        if len > self.pages.len() {
            set_len(self.fd.as_fd(), len)?;
            self.pages.grow(len)?;
        }
        while self.resident < len {
            let step = self.resident..len.min(self.resident + STEP_LEN);
            allocate(self.fd.as_fd(), &step, 0)?;
            self.pages.populate(&step);
            self.resident = step.end;
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`, which [`Memory::reserve`] has covered.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.resident, "room is reserved before it is written");
        self.pages.write(offset, bytes);
    }

    /// Gives the pages back to the kernel, whoever else has mapped them.
    pub(super) fn punch(&mut self) -> io::Result<()> {
        let all = 0..self.resident;
        if all.is_empty() {
            return Ok(());
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate(self.fd.as_fd(), &all, mode)?;
        self.resident = 0;
        Ok(())
    }
}

/// The length of a segment that another process offers.
///
/// # Errors
/// `InvalidData` when the owner could cut it off under our feet: touching it would raise SIGBUS.
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

fn set_len(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the call changes a descriptor that is open for as long as it is borrowed.
    match unsafe { libc::ftruncate(fd.as_raw_fd(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn allocate(fd: BorrowedFd<'_>, range: &Range<usize>, mode: libc::c_int) -> io::Result<()> {
    let offset = |at: usize| libc::off_t::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge);
    let (start, len) = (offset(range.start)?, offset(range.len())?);
    loop {
        // SAFETY: the call changes a descriptor that is open for as long as it is borrowed.
        if unsafe { libc::fallocate(fd.as_raw_fd(), mode, start, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
