//! Ranges of memory of this process, by address.
#![expect(unsafe_code, reason = "copies between addresses")]

use std::slice;

/// A range of memory of this process. It consists of plain numbers; its users must ensure that the
/// memory stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The address of the first byte.
    pub start: usize,
    /// The number of bytes.
    pub len: usize,
}

impl Span {
    /// The part of `len` bytes that begins at `offset`; `None` if it exceeds the range.
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { start: self.start + offset, len })
    }

    /// Whether all of `other` is inside this range.
    pub fn contains(self, other: Self) -> bool {
        other.start >= self.start
            && other.start.saturating_add(other.len) <= self.start.saturating_add(self.len)
    }

    /// Copies all bytes of `from`, which may overlap this range.
    ///
    /// # Safety
    /// Both ranges are mapped until the call returns; this one is writable and at least as long.
    /// Other threads and processes may access the same bytes concurrently, in which case the result
    /// is an arbitrary mixture.
    pub unsafe fn copy_from(self, from: Self) {
        debug_assert!(from.len <= self.len);
        if from.len == 0 {
            return;
        }
        // SAFETY: the caller guarantees both ranges.
        unsafe {
            std::ptr::copy(from.start as *const u8, self.start as *mut u8, from.len);
        }
    }

    /// The bytes, as the argument of a system call that reads them.
    ///
    /// # Safety
    /// They are mapped as long as the slice is used. The slice is passed to the kernel only,
    /// because other threads and processes may write to the bytes.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            // An empty range may have any address, including 0.
            return &[];
        }
        // SAFETY: the caller guarantees the range.
        unsafe { slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// The bytes, as the argument of a system call that writes them.
    ///
    /// # Safety
    /// As for [`Span::bytes`]; in addition, they are mapped for writing.
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller guarantees the range.
        unsafe { slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_beyond_the_end_is_none() {
        let span = Span { start: 4096, len: 256 };
        assert_eq!(span.part(usize::MAX - 8, 8), None);
        assert_eq!(span.part(248, 8), Some(Span { start: 4344, len: 8 }));
    }
}
