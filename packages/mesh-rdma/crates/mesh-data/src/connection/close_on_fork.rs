//! Descriptors of this process that a forked child must not keep.
//!
//! What a child holds of its parent's sockets would keep them open when the parent dies, and those
//! who are connected to it would not hear of that. Programs that are started close them by
//! themselves; a child that goes on as a copy of its parent does it here, before anything else.
#![expect(unsafe_code, reason = "replaces descriptors by number")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// How many numbers there are: more descriptors a process has only where somebody has raised the
/// system's own limit.
const COUNT: usize = 1 << 20;

/// A bit for each number. No lock: in a child, one might be held by a thread that is not there.
static OURS: [AtomicU64; COUNT / 64] = [const { AtomicU64::new(0) }; COUNT / 64];

/// A descriptor that a forked child does not keep.
#[derive(Debug)]
pub(crate) struct Descriptor(OwnedFd);

impl Descriptor {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        note(fd.as_fd());
        Self(fd)
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // Before the number is another's.
        if let Some((word, bit)) = place(self.0.as_raw_fd()) {
            word.fetch_and(!bit, Relaxed);
        }
    }
}

/// Has a forked child give up a descriptor that is open for as long as the process lives.
pub(crate) fn note(fd: BorrowedFd<'_>) {
    if let Some((word, bit)) = place(fd.as_raw_fd()) {
        word.fetch_or(bit, Relaxed);
    }
}

fn place(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OURS.get(number / 64)?, 1 << (number % 64)))
}

/// In a forked child: lets go of all of them. Their numbers stay taken, by a descriptor of nothing,
/// for what is closed by number later must not be another's.
pub(crate) fn give_up() {
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    for (at, word) in OURS.iter().enumerate() {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            let number = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(number) = RawFd::try_from(number) {
                // SAFETY: the number is of a descriptor of ours, which nobody uses in this child.
                let _ = unsafe { libc::dup3(nothing.as_raw_fd(), number, libc::O_CLOEXEC) };
            }
        }
    }
}
