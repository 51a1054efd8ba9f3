//! Identifiers of chunks.

use crate::check::check_of;
use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

/// Number of bytes of an id that are taken from the hash; the remaining eight are the checksum.
const HASH_BYTES: usize = 24;

/// Content-derived id of a chunk: a prefix of the BLAKE3 hash of its bytes, and a checksum of them.
///
/// The hash distinguishes all chunks. It is computed once, by the process that reads the original
/// file. A process that receives an id only needs to verify that the bytes are unchanged, for which
/// the checksum is many times faster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub [u8; 32]);

/// The text is not a valid [`ChunkId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a chunk id: give its 64 hexadecimal digits")]
pub struct InvalidId;

impl ChunkId {
    /// Computes the id of a chunk.
    pub fn of(bytes: &[u8]) -> Self {
        let mut name = *blake3::hash(bytes).as_bytes();
        name[HASH_BYTES..].copy_from_slice(&check_of(bytes).to_le_bytes());
        Self(name)
    }

    /// Returns whether the bytes match the checksum in this id.
    ///
    /// This detects corruption. It does not detect bytes that were constructed to have the same
    /// checksum.
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

/// Hashes a [`ChunkId`] for a hash table. An id is a hash already, so eight of its bytes suffice.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    // `Hash` writes the length of the array first, which is the same for all ids.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_round_trips_through_its_text_form() {
        let id = ChunkId::of(b"some bytes");
        let text = id.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(text.to_uppercase().parse(), Ok(id));
        assert!(text.starts_with(&format!("{id:?}")));
    }

    #[test]
    fn an_id_fits_only_its_own_bytes() {
        let id = ChunkId::of(b"some bytes");
        assert!(id.fits(b"some bytes"));
        assert!(!id.fits(b"some byte") && !id.fits(b"same bytes") && !id.fits(b""));
    }

    #[test]
    fn malformed_ids_are_refused() {
        let text = ChunkId::of(b"").to_string();
        for wrong in ["", "00", &text[1..], &format!("{text}0"), &text.replacen('a', "g", 1)] {
            assert_eq!(wrong.parse::<ChunkId>(), Err(InvalidId), "{wrong}");
        }
        assert_eq!("+f".repeat(32).parse::<ChunkId>(), Err(InvalidId));
        assert_eq!("ä".repeat(32).parse::<ChunkId>(), Err(InvalidId));
    }
}
