//! Sequential reader of untrusted bytes.

use crate::error::DecodeError;
use crate::format::varint;

/// The bytes and the current position.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Offset of the next byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Number of remaining bytes.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns an error at the current offset.
    pub(crate) fn malformed(&self, problem: &'static str) -> DecodeError {
        DecodeError::Malformed { at: self.at, problem }
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let rest = &self.bytes[self.at..];
        let bytes = rest.get(..len).ok_or(self.malformed("cut off"))?;
        self.at += len;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let rest = &self.bytes[self.at..];
        let bytes = rest.first_chunk().ok_or(self.malformed("cut off"))?;
        self.at += N;
        Ok(*bytes)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let found = varint::get(&self.bytes[self.at..]);
        let (number, len) = found.ok_or(self.malformed("no number"))?;
        self.at += len;
        Ok(number)
    }

    /// Reads a number that is at most `max`.
    pub(crate) fn at_most(&mut self, max: u64, problem: &'static str) -> Result<u64, DecodeError> {
        let number = self.number()?;
        if number > max { Err(self.malformed(problem)) } else { Ok(number) }
    }

    /// Reads a number that fits into 32 bits.
    pub(crate) fn small(&mut self) -> Result<u32, DecodeError> {
        let number = self.at_most(u64::from(u32::MAX), "number too large")?;
        Ok(number as u32)
    }

    /// Reads bytes that are preceded by their length, which is at most `max`.
    pub(crate) fn text(&mut self, max: usize) -> Result<&'a [u8], DecodeError> {
        let len = self.at_most(max as u64, "too long")?;
        self.bytes(len as usize)
    }
}
