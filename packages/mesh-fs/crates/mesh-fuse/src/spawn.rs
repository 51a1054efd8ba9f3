//! Starting a program that inherits nothing from this process.
#![allow(unsafe_code)]

use rustix::io::{Errno, FdFlags};
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int, c_short};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// Starts a program in a separate session.
///
/// It reads from `stdin`, and its output is discarded. It has no other descriptors, and no signals
/// are blocked. The memory of this process is not copied, regardless of its size.
pub(crate) fn spawn(
    program: &CStr,
    arguments: &[CString],
    environment: &[CString],
    stdin: BorrowedFd<'_>,
) -> Result<Pid, Errno> {
    let mut actions = Actions::new()?;
    actions.take(stdin.as_raw_fd(), 0)?;
    actions.open_null(1)?;
    actions.open_null(2)?;
    inherited().into_iter().try_for_each(|fd| actions.close(fd))?;
    let attributes = Attributes::new()?;
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let mut pid = 0;
    // SAFETY: both lists contain zero-terminated strings, end with a null pointer themselves, and
    // outlive the call, as do the actions and attributes, which were initialized by their own
    // functions.
    let result = unsafe {
        libc::posix_spawn(
            &raw mut pid,
            program.as_ptr(),
            &raw const actions.0,
            &raw const attributes.0,
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    check(result)?;
    Pid::from_raw(pid).ok_or(Errno::CHILD)
}

/// Returns descriptors that other code in this process has opened without close-on-exec.
fn inherited() -> Vec<RawFd> {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inherited = numbers.filter(|fd: &RawFd| {
        // SAFETY: only the flags of the descriptor are read, and this fails if it has been closed.
        let flags =
            (*fd > 2).then(|| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*fd) }));
        flags.is_some_and(|flags| flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)))
    });
    inherited.collect()
}

fn pointers(strings: &[CString]) -> Vec<*mut c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr().cast_mut());
    pointers.chain([ptr::null_mut()]).collect()
}

fn check(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(result)) }
}

/// Operations on the descriptors before the program runs.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> Result<Self, Errno> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call initializes its argument, or fails.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: the call has not failed.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn take(&mut self, from: RawFd, to: RawFd) -> Result<(), Errno> {
        // SAFETY: the actions were initialized by `new`; only the numbers are recorded.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, from, to) })
    }

    fn open_null(&mut self, to: RawFd) -> Result<(), Errno> {
        let (path, flags) = (c"/dev/null", libc::O_WRONLY);
        // SAFETY: the actions were initialized by `new`; the path is copied.
        check(unsafe {
            libc::posix_spawn_file_actions_addopen(&raw mut self.0, to, path.as_ptr(), flags, 0)
        })
    }

    fn close(&mut self, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: the actions were initialized by `new`; only the number is recorded.
        check(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut self.0, fd) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: the actions were initialized by `new`, and no other reference to them exists.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// Attributes of the new process.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> Result<Self, Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call initializes its argument, or fails.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: the call has not failed.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let mut signals = MaybeUninit::uninit();
        // SAFETY: the call initializes its argument; it cannot fail with valid memory.
        let none = unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            signals.assume_init()
        };
        // SAFETY: the attributes were initialized above; the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const none) })?;
        let flags = libc::POSIX_SPAWN_SETSID | libc::POSIX_SPAWN_SETSIGMASK as c_short;
        // SAFETY: the attributes were initialized above.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: the attributes were initialized by `new`, and no other reference to them exists.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}
