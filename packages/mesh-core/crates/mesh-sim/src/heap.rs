//! How much memory a world takes: an allocator that counts what each thread has.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait; this one only counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count.
///
/// A world lives on one thread, so the count of the thread is that of its world. A program counts
/// when it names this as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Bytes that this thread has allocated and not freed; 0 in a program that does not count.
pub fn in_use() -> usize {
    usize::try_from(IN_USE.get()).unwrap_or(0)
}

/// The most that were in use since this was asked last.
pub fn take_peak() -> usize {
    usize::try_from(PEAK.replace(IN_USE.get())).unwrap_or(0)
}

/// The most kilobytes of memory that the whole program ever had resident, says the kernel.
pub fn resident_peak_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn count(bytes: isize) {
    let in_use = IN_USE.get() + bytes;
    IN_USE.set(in_use);
    if in_use > PEAK.get() {
        PEAK.set(in_use);
    }
}

// SAFETY: every call goes to the system's allocator as it came, which keeps the contract of the
// trait; counting touches no allocated memory and allocates nothing, for the cells of the thread
// need neither a start nor an end.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is the one that the system wants.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `alloc` above, so from the system, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len as isize - layout.size() as isize);
        // SAFETY: as for `dealloc`, and `len` is the caller's promise.
        unsafe { System.realloc(at, layout, len) }
    }
}
