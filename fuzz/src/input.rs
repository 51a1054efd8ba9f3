//! The input bytes of one run, decoded as numbers.

/// Input bytes that a target consumes in order as choices; after the last byte, all numbers are 0.
#[derive(Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Creates an input that starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether all bytes are consumed.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the next `len` bytes, or all remaining bytes if there are fewer.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// Returns all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Returns the next byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Returns the next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Returns the next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Returns the next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Returns the value that the next byte selects.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.u8()) % values.len()]
    }

    fn array<const LEN: usize>(&mut self) -> [u8; LEN] {
        let mut array = [0; LEN];
        let taken = self.take(LEN);
        array[..taken.len()].copy_from_slice(taken);
        array
    }
}
