//! Memory of another process that was never shared: the kernel copies it across.
#![expect(unsafe_code, reason = "names addresses of two processes to the kernel")]

use crate::connection::close_on_fork::Descriptor;
use crate::copy::grid::Row;
use crate::span::Span;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// How many ranges the kernel takes at a time.
pub(crate) const IOVEC_MAX: usize = 1024;

/// A live process of this machine.
#[derive(Debug)]
pub(crate) struct Attached {
    pid: i32,
    pidfd: Descriptor,
}

impl Attached {
    /// The process that has this number now; it must not be 0.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid: pid.as_raw_nonzero().get(), pidfd: Descriptor::new(pidfd) })
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.pidfd, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
    }

    /// Copies bytes from the process; gives how many.
    ///
    /// # Safety
    /// `to` is mapped for writing until this returns.
    pub(crate) unsafe fn read(&self, to: Span, from: u64) -> io::Result<usize> {
        let (ours, theirs) = (iovec(to.start as u64, to.len), iovec(from, to.len));
        // SAFETY: ours is the caller's promise; a bad address of theirs is an error.
        counted(unsafe {
            libc::process_vm_readv(self.pid, &raw const ours, 1, &raw const theirs, 1, 0)
        })
    }

    /// Copies rows from the process, from where `from` is there, to the room; gives how many bytes.
    ///
    /// # Safety
    /// The room is mapped for writing until this returns, and as long as the rows say.
    pub(crate) unsafe fn read_rows(
        &self,
        room: Span,
        from: u64,
        rows: &[Row],
    ) -> io::Result<usize> {
        let start = room.start as u64;
        let ours: Vec<_> = rows.iter().map(|row| iovec(start + row.to, row.len as usize)).collect();
        let theirs: Vec<_> =
            rows.iter().map(|row| iovec(from.wrapping_add(row.from), row.len as usize)).collect();
        let count = rows.len() as libc::c_ulong;
        // SAFETY: ours are the caller's promise; a bad address of theirs is an error.
        counted(unsafe {
            libc::process_vm_readv(self.pid, ours.as_ptr(), count, theirs.as_ptr(), count, 0)
        })
    }

    /// Copies bytes into the process; gives how many.
    ///
    /// # Safety
    /// `from` is mapped until this returns, and `to` is memory that the process has offered.
    pub(crate) unsafe fn write(&self, from: Span, to: u64) -> io::Result<usize> {
        let (ours, theirs) = (iovec(from.start as u64, from.len), iovec(to, from.len));
        // SAFETY: ours is the caller's promise; a bad address of theirs is an error.
        counted(unsafe {
            libc::process_vm_writev(self.pid, &raw const ours, 1, &raw const theirs, 1, 0)
        })
    }
}

/// The process at the other end of a socket of this machine, as the kernel names it: the one that
/// has connected, or the one that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    pid: i32,
    /// Its effective user.
    pub(crate) uid: u32,
}

impl PeerCredentials {
    /// Whether it runs as the user of this process.
    pub(crate) fn is_this_user(self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }

    /// The number of the process.
    ///
    /// # Errors
    /// It is in another pid namespace, where this process cannot see it.
    pub(crate) fn pid(self) -> io::Result<Pid> {
        // The kernel gives 0 for a process that has no number here.
        Pid::from_raw(self.pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Asks the kernel which process is at the other end of a socket of this machine.
pub(crate) fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<PeerCredentials> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes as many bytes as it is told that there are.
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

/// Why the system does not let us, in words for whoever could change it.
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
