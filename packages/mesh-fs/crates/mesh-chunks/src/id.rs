//! What a chunk is called.

use crate::check::check_of;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

/// How much of a name is of the hash.
const HASH_BYTES: usize = 24;

/// The name of a chunk: the front of the BLAKE3 hash of its bytes, and a sum of them.
///
/// The hash tells all chunks apart; it is taken once, by who has a file. Whoever has the name only
/// needs to see whether bytes have stayed what they were: the sum tells that many times as fast.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub [u8; 32]);

/// A text that is no [`ChunkId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of a chunk: give its 64 hexadecimal digits")]
pub struct InvalidId;

impl ChunkId {
    /// Names some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut name = *blake3::hash(bytes).as_bytes();
        name[HASH_BYTES..].copy_from_slice(&check_of(bytes).to_le_bytes());
        Self(name)
    }

    /// Whether these are the bytes, unless somebody has made them up to look like it.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        self.0[HASH_BYTES..] == check_of(bytes).to_le_bytes()
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

impl FromStr for ChunkId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(InvalidId);
        }
        let mut id = [0; 32];
        for (byte, pair) in id.iter_mut().zip(pairs) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(id))
    }
}

fn digit(letter: u8) -> Result<u8, InvalidId> {
    match letter {
        b'0'..=b'9' => Ok(letter - b'0'),
        b'a'..=b'f' => Ok(letter - b'a' + 10),
        b'A'..=b'F' => Ok(letter - b'A' + 10),
        _ => Err(InvalidId),
    }
}

/// Hashes a [`ChunkId`] for a table: it is a hash already, so that a part of it does.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    // The length of the name goes before it, and is the same for all.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_read_as_it_is_written() {
        let id = ChunkId::of(b"some bytes");
        let text = id.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_uppercase().parse(), Ok(id));
        assert!(text.starts_with(&format!("{id:?}")));
    }

    #[test]
    fn a_name_fits_its_bytes_alone() {
        let id = ChunkId::of(b"some bytes");
        assert!(id.fits(b"some bytes"));
        assert!(!id.fits(b"some byte") && !id.fits(b"same bytes") && !id.fits(b""));
    }

    #[test]
    fn other_texts_are_no_names() {
        let text = ChunkId::of(b"").to_string();
        for wrong in ["", "00", &text[1..], &format!("{text}0"), &text.replacen('a', "g", 1)] {
            assert_eq!(wrong.parse::<ChunkId>(), Err(InvalidId), "{wrong}");
        }
        assert_eq!("+f".repeat(32).parse::<ChunkId>(), Err(InvalidId));
        assert_eq!("ä".repeat(32).parse::<ChunkId>(), Err(InvalidId));
    }
}
