//! Descriptors of this process that a forked child must not keep.
//!
//! The copies of sockets in a child would keep connections open when the parent dies, so that its
//! peers would not detect its death. Programs started with `exec` close them automatically. A child
//! that continues as a copy of its parent closes them here before it does anything else.
#![expect(unsafe_code, reason = "replaces descriptors by number")]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The number of descriptors that can be recorded. A process has more of them only if the default
/// limit of the system was raised.
const COUNT: usize = 1 << 20;

/// One bit per number. There is no lock, because a thread that does not exist in a child could hold
/// it.
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
        // The bit is cleared before the number can be reused.
        if let Some((word, bit)) = bit_of(self.0.as_raw_fd()) {
            word.fetch_and(!bit, Relaxed);
        }
    }
}

/// Makes a forked child close a descriptor that stays open until the process exits.
pub(crate) fn note(fd: BorrowedFd<'_>) {
    if let Some((word, bit)) = bit_of(fd.as_raw_fd()) {
        word.fetch_or(bit, Relaxed);
    }
}

fn bit_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok()?;
    Some((OURS.get(number / 64)?, 1 << (number % 64)))
}

/// Closes all recorded descriptors in a forked child. Their numbers remain allocated and refer to
/// `/dev/null`, so that a later close by number affects no other descriptor.
pub(crate) fn close_all() {
    let Ok(nothing) = File::options().read(true).write(true).open("/dev/null") else { return };
    for (at, word) in OURS.iter().enumerate() {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            let number = at * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Ok(number) = RawFd::try_from(number) {
                // SAFETY: the number belongs to a descriptor of this module, which is unused in
                // this child.
                let _ = unsafe { libc::dup3(nothing.as_raw_fd(), number, libc::O_CLOEXEC) };
            }
        }
    }
}
