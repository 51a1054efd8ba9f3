//! Memory usage of a world, measured by an allocator that counts the bytes of each thread.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait; this one only counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system allocator with a counter for each thread.
///
/// A world runs on one thread, so the counter of the thread is that of its world. Counting is
/// enabled in a program that declares this type as its `#[global_allocator]`.
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

/// Returns the maximum of [`in_use`] since the previous call.
pub fn take_peak() -> usize {
    usize::try_from(PEAK.replace(IN_USE.get())).unwrap_or(0)
}

/// The maximum resident memory of the whole program in kilobytes, as reported by the kernel.
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

// SAFETY: every call is forwarded unchanged to the system allocator, which upholds the contract of
// the trait. Counting accesses no allocated memory and allocates nothing, because the thread-local
// cells need neither lazy initialization nor a destructor.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller guarantees for `layout` what the system allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `alloc` above, and therefore from the system allocator, with this
        // layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(len as isize - layout.size() as isize);
        // SAFETY: as in `dealloc`; the caller promises that `len` is valid.
        unsafe { System.realloc(at, layout, len) }
    }
}
