//! Bytes of this process, by address.
#![expect(unsafe_code, reason = "copies between addresses")]

use std::slice;

/// A range of this process's memory. Plain numbers: whoever uses them knows who keeps them alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The address of the first byte.
    pub start: usize,
    /// How many bytes.
    pub len: usize,
}

impl Span {
    /// The part of `len` bytes from `offset` on, if there is such a part.
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { start: self.start + offset, len })
    }

    /// Whether all of `other` lies inside.
    pub fn contains(self, other: Self) -> bool {
        other.start >= self.start
            && other.start.saturating_add(other.len) <= self.start.saturating_add(self.len)
    }

    /// Copies all bytes of `from`, which may overlap.
    ///
    /// # Safety
    /// Both are mapped, this one for writing and at least as long, until the call returns. Others
    /// may read or write the same bytes meanwhile: then what is copied is any mixture.
    pub unsafe fn copy_from(self, from: Self) {
        debug_assert!(from.len <= self.len);
        if from.len == 0 {
            return;
        }
        // SAFETY: the caller's.
        unsafe {
            std::ptr::copy(from.start as *const u8, self.start as *mut u8, from.len);
        }
    }

    /// The bytes, for a system call that reads them.
    ///
    /// # Safety
    /// They are mapped for as long as the slice is used. It goes to the kernel and nowhere else:
    /// others may write them.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            // No bytes may be anywhere, also at the address 0.
            return &[];
        }
        // SAFETY: the caller's.
        unsafe { slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// The bytes, for a system call that writes them.
    ///
    /// # Safety
    /// As for [`Span::bytes`], and they are mapped for writing.
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's.
        unsafe { slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_far_behind_the_end_is_none() {
        let span = Span { start: 4096, len: 256 };
        assert_eq!(span.part(usize::MAX - 8, 8), None);
        assert_eq!(span.part(248, 8), Some(Span { start: 4344, len: 8 }));
    }
}
