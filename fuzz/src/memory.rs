//! Measures the memory that a piece of code uses, by counting its allocations.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Allocations of this size or more are not counted: they come from the kernel, which allocates
/// their pages on the first write. The fuzzer's limit on resident memory applies to them.
const LAZY_LEN_MIN: usize = 1 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

/// Runs a step and checks that it never held more than `limit` bytes at a time.
///
/// # Panics
/// If it held more. Allocations of other threads are counted, too.
pub fn bounded(limit: usize, step: impl FnOnce()) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    step();
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= limit, "{taken} bytes were taken, more than {limit}");
}

struct Counted;

impl Counted {
    fn took(len: usize) {
        if len < LAZY_LEN_MIN {
            let live = LIVE.fetch_add(len, Relaxed).wrapping_add(len);
            PEAK.fetch_max(live, Relaxed);
        }
    }

    fn gave(len: usize) {
        if len < LAZY_LEN_MIN {
            LIVE.fetch_sub(len, Relaxed);
        }
    }
}

// SAFETY: every call is forwarded to the system's allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::gave(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}
