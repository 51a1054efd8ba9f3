//! A checksum that detects accidental changes and is many times faster than a cryptographic hash.
//!
//! It detects corruption on disk or in transit: bytes that were changed, truncated or moved. It
//! does not protect against an attacker, who can construct other bytes with the same checksum.
//!
//! The input is processed in blocks of 64 bytes; the last block is padded with zeros. Each of the
//! four lanes takes 16 bytes of a block as two words. It XORs each word with a key of the lane,
//! multiplies the two words, and folds the halves of the product together. Before this value is
//! added to the lane, the lane is multiplied by an odd constant, so that the order of blocks
//! affects the result and no information about earlier blocks is lost.

const LANES: usize = 4;
const BLOCK_BYTES: usize = 16 * LANES;
/// Two keys for each lane without a pattern: the fractional parts of the square roots of the first
/// primes.
const KEYS: [[u64; 2]; LANES] = [
    [0x6a09_e667_f3bc_c908, 0xbb67_ae85_84ca_a73b],
    [0x3c6e_f372_fe94_f82b, 0xa54f_f53a_5f1d_36f1],
    [0x510e_527f_ade6_82d1, 0x9b05_688c_2b3e_6c1f],
    [0x1f83_d9ab_fb41_bd6b, 0x5be0_cd19_137e_2179],
];
/// The fractional part of the golden ratio, made odd.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Computes the checksum of `bytes`.
pub(crate) fn check_of(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let mut lanes = [0; LANES];
    blocks.iter().for_each(|block| add(&mut lanes, block));
    if !rest.is_empty() {
        let mut last = [0; BLOCK_BYTES];
        last[..rest.len()].copy_from_slice(rest);
        add(&mut lanes, &last);
    }
    let length = folded(bytes.len() as u64 ^ KEYS[0][0], SPREAD);
    lanes.iter().zip(KEYS).fold(length, |sum, (lane, [key, _])| {
        folded(sum.wrapping_mul(SPREAD).wrapping_add(*lane) ^ key, SPREAD)
    })
}

#[inline(always)]
fn add(lanes: &mut [u64; LANES], block: &[u8; BLOCK_BYTES]) {
    let (pairs, _) = block.as_chunks::<16>();
    for ((lane, pair), keys) in lanes.iter_mut().zip(pairs).zip(KEYS) {
        let (words, _) = pair.as_chunks::<8>();
        let (one, two) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        *lane = lane.wrapping_mul(SPREAD).wrapping_add(folded(one ^ keys[0], two ^ keys[1]));
    }
}

fn folded(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_checksum_is_stable() {
        let sums = [0, 1, 64, 1000].map(|length| check_of(&noise(length)));
        let expected = [
            0x69ad_8969_2b33_eda7,
            0x4a41_9122_57a0_c917,
            0x1a61_2458_0ccd_8823,
            0xa068_8604_8ae1_1999,
        ];
        assert_eq!(sums, expected);
    }

    #[test]
    fn each_flipped_bit_changes_the_checksum() {
        let mut bytes = noise(1000);
        let mut sums = HashSet::from([check_of(&bytes)]);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(sums.insert(check_of(&bytes)), "{bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn trailing_zeros_change_the_checksum() {
        let sums: HashSet<_> = (0..300).map(|length| check_of(&vec![0; length])).collect();
        assert_eq!(sums.len(), 300);
    }

    #[test]
    fn swapped_blocks_and_pages_change_the_checksum() {
        let bytes = noise(128 << 10);
        let sum = check_of(&bytes);
        for length in [8, 16, 64, 512, 4096, 32 << 10] {
            for distance in [1, 2, 3].map(|steps| steps * length) {
                let mut moved = bytes.clone();
                let (front, back) = moved.split_at_mut(distance);
                front[..length].swap_with_slice(&mut back[..length]);
                assert_ne!(check_of(&moved), sum, "{length} {distance}");
            }
        }
    }

    proptest! {
        #[test]
        fn overwritten_bytes_change_the_checksum(
            length in 1_usize..5000,
            at: prop::sample::Index,
            garbage in prop::collection::vec(any::<u8>(), 1..100),
        ) {
            let bytes = noise(length);
            let mut other = bytes.clone();
            let at = at.index(length);
            let count = garbage.len().min(length - at);
            other[at..at + count].copy_from_slice(&garbage[..count]);
            prop_assert_eq!(check_of(&bytes) == check_of(&other), bytes == other);
        }
    }
}
