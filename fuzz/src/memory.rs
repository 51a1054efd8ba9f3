//! How much memory a piece of code takes, counted where it is taken.
#![expect(
    unsafe_code,
    reason = "an allocator is unsafe by its trait; this one counts and passes on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Longer pieces come from the kernel, which gives their pages one by one when they are written to:
/// they are left to the fuzzer's limit on resident memory.
const LAZY_LEN_MIN: usize = 1 << 20;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static COUNTED: Counted = Counted;

/// Runs a step and panics when it held more than `limit` bytes at any moment.
///
/// # Panics
/// When it did. Other threads count too.
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

// SAFETY: all work is done by the system's allocator, with the arguments as they came.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::took(layout.size());
        // SAFETY: the caller's promise is the one that is asked for.
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
