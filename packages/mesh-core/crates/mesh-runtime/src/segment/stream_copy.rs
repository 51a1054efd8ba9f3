//! Copies to memory that is not read soon.
//!
//! An ordinary store first loads the target into the caches, and evicts data that the caller needs
//! next. Streaming stores write past the caches, which takes about half of the time.
#![expect(unsafe_code, reason = "stores that bypass the caches")]

use std::ptr;

/// Shorter copies stay in the caches.
const STREAM_LEN_MIN: usize = 128 << 10;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
pub(super) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STREAM_LEN_MIN {
        // SAFETY: the obligation is passed on to the caller.
        return unsafe { stream(from, to, len) };
    }
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As for [`ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let done = head + lines * LINE;
    // SAFETY: all three ranges are inside of both areas, and the streamed one is aligned.
    unsafe {
        ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(source.add(part)));
            for (part, value) in parts.into_iter().enumerate() {
                _mm_stream_si128(target.add(part), value);
            }
        }
        // Later stores, such as the length of the entry, must not become visible earlier.
        _mm_sfence();
        ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
    }
}

#[cfg(test)]
mod tests {
    use super::{STREAM_LEN_MIN, copy_past_caches};

    #[test]
    fn every_byte_is_copied_and_no_other_byte_is_changed() {
        let len = STREAM_LEN_MIN + 777;
        let from: Vec<u8> = (0..len + 64).map(|at| (at % 251) as u8).collect();
        for (start, short) in [(0, 0), (1, 3), (63, 64), (17, STREAM_LEN_MIN)] {
            let mut to = vec![255_u8; len + 128];
            let count = len - short;
            // SAFETY: both areas are that long.
            unsafe {
                copy_past_caches(from[start..].as_ptr(), to[start + 7..].as_mut_ptr(), count);
            }
            assert_eq!(to[start + 7..][..count], from[start..][..count]);
            assert!(to[..start + 7].iter().all(|byte| *byte == 255));
            assert!(to[start + 7 + count..].iter().all(|byte| *byte == 255));
        }
    }
}
