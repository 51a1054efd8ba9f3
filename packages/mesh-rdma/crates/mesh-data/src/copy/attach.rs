//! Access to memory of another process that is not shared: the kernel copies it.
#![expect(unsafe_code, reason = "names addresses of two processes to the kernel")]

use crate::connection::close_on_fork::Descriptor;
use crate::copy::grid::Row;
use crate::span::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The maximum number of ranges per system call.
pub(crate) const IOVEC_MAX: usize = 1024;

/// A process of this machine.
#[derive(Debug)]
pub(crate) struct AttachedProcess {
    pid: i32,
    pidfd: Descriptor,
}

impl AttachedProcess {
    /// Opens the process that currently has this pid, which must not be 0.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid: pid.as_raw_nonzero().get(), pidfd: Descriptor::new(pidfd) })
    }

    /// Whether the process has exited.
    pub(crate) fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Copies bytes from the process; returns their number.
    ///
    /// # Safety
    /// `to` is mapped for writing until this returns.
    pub(crate) unsafe fn read(&self, to: Span, from: u64) -> io::Result<usize> {
        let (ours, theirs) = (iovec(to.start as u64, to.len), iovec(from, to.len));
        // SAFETY: the caller guarantees `ours`; an invalid address in `theirs` is an error.
        counted(unsafe {
            libc::process_vm_readv(self.pid, &raw const ours, 1, &raw const theirs, 1, 0)
        })
    }

    /// Copies rows from the process, relative to its address `from`, to `buffer`; returns the
    /// number of bytes.
    ///
    /// # Safety
    /// `buffer` is mapped for writing until this returns, and is as long as the rows require.
    pub(crate) unsafe fn read_rows(
        &self,
        buffer: Span,
        from: u64,
        rows: &[Row],
    ) -> io::Result<usize> {
        let start = buffer.start as u64;
        let ours: Vec<_> = rows.iter().map(|row| iovec(start + row.to, row.len as usize)).collect();
        let theirs: Vec<_> =
            rows.iter().map(|row| iovec(from.wrapping_add(row.from), row.len as usize)).collect();
        let count = rows.len() as libc::c_ulong;
        // SAFETY: the caller guarantees `ours`; invalid addresses in `theirs` are errors.
        counted(unsafe {
            libc::process_vm_readv(self.pid, ours.as_ptr(), count, theirs.as_ptr(), count, 0)
        })
    }

    /// Copies bytes to the process; returns their number.
    ///
    /// # Safety
    /// `from` is mapped until this returns, and `to` is memory that the process has registered.
    pub(crate) unsafe fn write(&self, from: Span, to: u64) -> io::Result<usize> {
        let (ours, theirs) = (iovec(from.start as u64, from.len), iovec(to, from.len));
        // SAFETY: the caller guarantees `ours`; an invalid address in `theirs` is an error.
        counted(unsafe {
            libc::process_vm_writev(self.pid, &raw const ours, 1, &raw const theirs, 1, 0)
        })
    }
}

/// The kernel's credentials of the process at the other end of a Unix domain socket: the process
/// that has connected, or the process that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    pid: i32,
    /// The effective user id.
    pub(crate) uid: u32,
}

impl PeerCredentials {
    /// Whether it runs as the user of this process.
    pub(crate) fn is_this_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// The pid of the process.
    ///
    /// # Errors
    /// The process is in another pid namespace, and not visible to this process.
    pub(crate) fn pid(self) -> io::Result<Pid> {
        // The kernel reports 0 for a process that does not have a pid in this namespace.
        Pid::from_raw(self.pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Returns the credentials of the process at the other end of a Unix domain socket.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `peer`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(PeerCredentials { pid: peer.pid, uid: peer.uid })
}

fn iovec(start: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len }
}

fn counted(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Explains to the user why the system does not permit the access.
pub(crate) fn refusal(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "the system forbids it: set kernel.yama.ptrace_scope to 0, and run both processes as \
             the same user"
        }
        Some(libc::ENOSYS) => "the system has no process_vm_readv",
        Some(libc::ESRCH) => "the process is in another pid namespace",
        _ => return error.to_string(),
    };
    format!("{hint} ({error})")
}
