//! Records of a pack's index, which locate the chunks in the pack.
//!
//! A record has 48 bytes, with numbers in little endian: the id of the chunk (32), its offset (4),
//! its length (4), and a checksum of these fields (8). A record of length zero has no chunk: offset
//! 0 means that its chunk is damaged, and offset 1 means that the pack is sealed. Records are
//! appended; only the record of a damaged chunk is overwritten in place. A record with a wrong
//! checksum was not written completely and is ignored.

use crate::CHUNK_BYTES_MAX;
use crate::id::ChunkId;

/// Length of a record in bytes.
pub(crate) const RECORD_BYTES: usize = 48;

/// Initial value of the checksum. A different layout would use a different value.
const SEED: u64 = u64::from_le_bytes(*b"chunks 1");
/// Spreads each bit of a word over the upper half: the fractional part of the golden ratio, made
/// odd.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const DROPPED: u32 = 0;
const SEALED: u32 = 1;

/// Contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The pack contains this chunk.
    Chunk { id: ChunkId, offset: u32, length: u32 },
    /// The chunk of this record is damaged.
    Dropped,
    /// The pack is full: no record follows.
    Sealed,
}

impl Record {
    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let (id, offset, length) = match *self {
            Self::Chunk { id, offset, length } => (id.0, offset, length),
            Self::Dropped => ([0; 32], DROPPED, 0),
            Self::Sealed => ([0; 32], SEALED, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[..32].copy_from_slice(&id);
        bytes[32..36].copy_from_slice(&offset.to_le_bytes());
        bytes[36..40].copy_from_slice(&length.to_le_bytes());
        let check = check_of(&bytes);
        bytes[40..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a record; returns `None` if it is not valid.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let (words, _) = bytes.as_chunks::<8>();
        if u64::from_le_bytes(words[5]) != check_of(bytes) {
            return None;
        }
        let (halves, _) = bytes.as_chunks::<4>();
        let (offset, length) = (u32::from_le_bytes(halves[8]), u32::from_le_bytes(halves[9]));
        match (length, offset) {
            (0, DROPPED) => Some(Self::Dropped),
            (0, SEALED) => Some(Self::Sealed),
            (0, _) => None,
            _ if length as usize > CHUNK_BYTES_MAX => None,
            _ => {
                let id = ChunkId(*bytes.first_chunk().expect("a record is longer than a name"));
                Some(Self::Chunk { id, offset, length })
            }
        }
    }
}

/// Checksum of a record. It only needs to detect incomplete writes: the bytes of a chunk are
/// verified by the chunk's id.
fn check_of(record: &[u8; RECORD_BYTES]) -> u64 {
    let (words, _) = record.as_chunks::<8>();
    words[..5].iter().fold(SEED, |check, word| {
        let mixed = (check ^ u64::from_le_bytes(*word)).wrapping_mul(SPREAD);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_record_layout_is_stable() {
        let id = ChunkId(std::array::from_fn(|at| at as u8));
        let bytes = Record::Chunk { id, offset: 0x0102_0304, length: 0x0008_0605 }.encode();
        assert_eq!(bytes[..32], id.0);
        assert_eq!(bytes[32..40], [4, 3, 2, 1, 5, 6, 8, 0]);
        assert_eq!(
            u64::from_le_bytes(*bytes.last_chunk().expect("48 bytes")),
            0x88ad_67f4_4160_486e
        );
    }

    #[test]
    fn zeros_are_not_a_record() {
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
    }

    proptest! {
        #[test]
        fn records_round_trip(
            id: [u8; 32],
            offset: u32,
            length in 1..=CHUNK_BYTES_MAX as u32,
        ) {
            for record in
                [Record::Chunk { id: ChunkId(id), offset, length }, Record::Dropped, Record::Sealed]
            {
                prop_assert_eq!(Record::decode(&record.encode()), Some(record));
            }
        }

        #[test]
        fn a_flipped_bit_is_detected(id: [u8; 32], bit in 0..RECORD_BYTES * 8) {
            let mut bytes = Record::Chunk { id: ChunkId(id), offset: 5, length: 7 }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(&bytes), None);
        }

        #[test]
        fn a_torn_record_is_detected(id: [u8; 32], len in 1..RECORD_BYTES) {
            let mut bytes = Record::Chunk { id: ChunkId(id), offset: 5, length: 7 }.encode();
            // The last byte may be zero, which is also what unwritten bytes read as.
            let is_whole = bytes[len..].iter().all(|byte| *byte == 0);
            bytes[len..].fill(0);
            prop_assert_eq!(Record::decode(&bytes).is_some(), is_whole);
        }
    }
}
