//! Starting a program that has nothing of ours.
#![allow(unsafe_code)]

use rustix::io::{Errno, FdFlags};
use rustix::process::Pid;
use std::ffi::{CStr, CString, c_char, c_int, c_short};
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

/// Starts a program in a session of its own. It reads from `stdin` and writes to nowhere; it has no
/// other descriptors, and no signals are blocked.
///
/// The memory of this process is not copied for it, however much that is.
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
    // SAFETY: both lists are of strings that end with a zero, end with a null themselves, and live
    // longer than the call, as do the actions and attributes, which were made by their own calls.
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

/// What others in this process have opened without saying that it is not for other programs.
fn inherited() -> Vec<RawFd> {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let inherited = numbers.filter(|fd: &RawFd| {
        // SAFETY: it is only asked for its flags, and that fails if it is closed by now.
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

/// What is done to the descriptors before the program runs.
struct Actions(libc::posix_spawn_file_actions_t);

impl Actions {
    fn new() -> Result<Self, Errno> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: the call fills in what it is given, or fails.
        check(unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) })?;
        // SAFETY: it has not failed.
        Ok(Self(unsafe { actions.assume_init() }))
    }

    fn take(&mut self, from: RawFd, to: RawFd) -> Result<(), Errno> {
        // SAFETY: the actions were made by `new`; numbers alone are noted.
        check(unsafe { libc::posix_spawn_file_actions_adddup2(&raw mut self.0, from, to) })
    }

    fn open_null(&mut self, to: RawFd) -> Result<(), Errno> {
        let (path, flags) = (c"/dev/null", libc::O_WRONLY);
        // SAFETY: the actions were made by `new`; the path is copied.
        check(unsafe {
            libc::posix_spawn_file_actions_addopen(&raw mut self.0, to, path.as_ptr(), flags, 0)
        })
    }

    fn close(&mut self, fd: RawFd) -> Result<(), Errno> {
        // SAFETY: the actions were made by `new`; the number alone is noted.
        check(unsafe { libc::posix_spawn_file_actions_addclose(&raw mut self.0, fd) })
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: they were made by `new`, and nobody has them any more.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

/// What the program begins as.
struct Attributes(libc::posix_spawnattr_t);

impl Attributes {
    fn new() -> Result<Self, Errno> {
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: the call fills in what it is given, or fails.
        check(unsafe { libc::posix_spawnattr_init(attributes.as_mut_ptr()) })?;
        // SAFETY: it has not failed.
        let mut attributes = Self(unsafe { attributes.assume_init() });
        let mut signals = MaybeUninit::uninit();
        // SAFETY: the call fills in what it is given; it cannot fail with memory of ours.
        let none = unsafe {
            libc::sigemptyset(signals.as_mut_ptr());
            signals.assume_init()
        };
        // SAFETY: the attributes were made above; the set is copied.
        check(unsafe { libc::posix_spawnattr_setsigmask(&raw mut attributes.0, &raw const none) })?;
        let flags = libc::POSIX_SPAWN_SETSID | libc::POSIX_SPAWN_SETSIGMASK as c_short;
        // SAFETY: the attributes were made above.
        check(unsafe { libc::posix_spawnattr_setflags(&raw mut attributes.0, flags) })?;
        Ok(attributes)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: they were made by `new`, and nobody has them any more.
        unsafe { libc::posix_spawnattr_destroy(&raw mut self.0) };
    }
}
