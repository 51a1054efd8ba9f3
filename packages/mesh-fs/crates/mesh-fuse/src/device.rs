//! The file descriptor for the kernel's requests and the replies.
#![allow(unsafe_code)]

use crate::abi;
use crate::encode;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl;
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Path of the FUSE device.
pub(crate) const PATH: &str = "/dev/fuse";
/// Limit of the kernel for the number of pieces of a vectored write.
const PARTS_MAX: usize = 1024;
/// Attaches a descriptor to the mount of another descriptor.
const CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// A descriptor of a mount. The reply to a request must use the descriptor that received it.
#[derive(Debug)]
pub(crate) struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Opens a descriptor that belongs to no mount yet.
    pub(crate) fn open() -> Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(PATH, flags, Mode::empty()).map(|fd| Self { fd })
    }

    /// Wraps a descriptor that was opened elsewhere.
    pub(crate) fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Opens another descriptor of the same mount, with a separate request queue.
    pub(crate) fn clone_descriptor(&self) -> Result<Self, Errno> {
        let clone = Self::open()?;
        let number = u32::try_from(self.fd.as_raw_fd()).map_err(|_| Errno::BADF)?;
        // SAFETY: the call reads four bytes at the address that the setter provides, and keeps no
        // reference.
        unsafe { ioctl::ioctl(&clone.fd, ioctl::Setter::<CLONE, u32>::new(number)) }?;
        Ok(clone)
    }

    /// Receives a request; `EAGAIN` if none is pending.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.fd, buffer)
    }

    /// Replies to a request with bytes.
    pub(crate) fn answer(&self, id: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        self.send(0, id, parts)
    }

    /// Replies to a request with an error.
    pub(crate) fn refuse(&self, id: u64, error: Errno) {
        let number = error.raw_os_error();
        let number =
            if (1..abi::ERRNO_END).contains(&number) { number } else { Errno::IO.raw_os_error() };
        // Ignore errors: the kernel may not be waiting for the reply any more.
        let _ = self.send(-number, id, &[]);
    }

    /// Sends a notification to the kernel.
    pub(crate) fn notify(&self, notice: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        self.send(notice, 0, parts)
    }

    fn send(&self, error: i32, id: u64, parts: &[&[u8]]) -> Result<(), Errno> {
        let body_len = parts.iter().map(|part| part.len()).sum();
        let header = encode::header(body_len, error, id);
        let joined;
        let body: &[&[u8]] = if parts.len() < PARTS_MAX {
            parts
        } else {
            joined = parts.concat();
            &[&joined]
        };
        let mut slices = Vec::with_capacity(body.len() + 1);
        slices.push(IoSlice::new(&header));
        slices.extend(body.iter().map(|part| IoSlice::new(part)));
        // The kernel accepts the whole message or nothing.
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.fd, &slices)).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
