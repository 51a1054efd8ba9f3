//! Content-defined chunking: equal content is split at the same places wherever it occurs.
//!
//! A rolling hash (gear hash) over the last 64 bytes is evaluated after each byte, and the position
//! is a cut point if the hash is below a threshold. The threshold is low while a chunk is short and
//! high afterwards, which keeps lengths near the average.

/// Number of bytes that the hash depends on.
const WINDOW: usize = 64;

/// Pseudorandom number that each byte value adds to the hash.
const GEAR: [u64; 256] = {
    let mut gear = [0; 256];
    let mut state = 0x6d65_7368_2d66_7331_u64;
    let mut value = 0;
    while value < gear.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[value] = mixed ^ (mixed >> 31);
        value += 1;
    }
    gear
};

/// Parameters for the lengths of chunks.
#[derive(Debug)]
pub(crate) struct Chunker {
    min: usize,
    /// Minimum length at which the threshold `loose` applies.
    normal: usize,
    max: usize,
    /// Threshold for chunks shorter than `normal`.
    strict: u64,
    /// Threshold for longer chunks.
    loose: u64,
}

/// Chunk lengths for files.
pub(crate) const CONTENT: Chunker = Chunker::new(8 << 10, 32 << 10, 128 << 10);
/// Chunk lengths for descriptions.
pub(crate) const DESCRIPTION: Chunker = Chunker::new(1 << 10, 4 << 10, 16 << 10);

impl Chunker {
    /// Computes the thresholds. Short chunks are rarely cut; others end, on average, `average / 4`
    /// bytes after three quarters of `average`.
    const fn new(min: usize, average: usize, max: usize) -> Self {
        assert!(min >= WINDOW && min < average && average < max && average.is_power_of_two());
        let one_in = average.trailing_zeros();
        let (strict, loose) = (1 << (64 - one_in - 2), 1 << (64 - one_in + 2));
        Self { min, normal: average / 4 * 3, max, strict, loose }
    }

    /// Maximum length of a chunk.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Returns the length of the first chunk.
    ///
    /// Bytes beyond the maximum length are ignored. If `bytes` is shorter than that, it must be the
    /// end of the content.
    pub(crate) fn first_len(&self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(self.max)];
        if bytes.len() <= self.min {
            return bytes.len();
        }
        let normal = self.normal.min(bytes.len());
        let sum = hash_of(&bytes[self.min - WINDOW..self.min]);
        match scan(sum, &bytes[self.min..normal], self.strict) {
            Ok(len) => self.min + len,
            Err(sum) => {
                let found = scan(sum, &bytes[normal..], self.loose);
                found.map_or(bytes.len(), |len| normal + len)
            }
        }
    }

    /// Returns the first cut point with the loose threshold, without a minimum length.
    pub(crate) fn cut_point(&self, bytes: &[u8]) -> Option<usize> {
        let (head, rest) = bytes.split_at_checked(WINDOW)?;
        scan(hash_of(head), rest, self.loose).ok().map(|len| WINDOW + len)
    }

    /// Splits bytes into chunks.
    pub(crate) fn pieces<'a>(&'a self, mut bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || {
            let (piece, rest) = bytes.split_at(self.first_len(bytes));
            bytes = rest;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

fn hash_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| (sum << 1).wrapping_add(GEAR[usize::from(*byte)]))
}

/// Returns the number of bytes up to and including the first cut point, or the hash at the end.
fn scan(mut sum: u64, bytes: &[u8], limit: u64) -> Result<usize, u64> {
    let (groups, rest) = bytes.as_chunks::<8>();
    for (nth, group) in groups.iter().enumerate() {
        // Process two bytes at once to shorten the dependency chain.
        for (pair, [one, two]) in group.as_chunks().0.iter().enumerate() {
            let (one, two) = (GEAR[usize::from(*one)], GEAR[usize::from(*two)]);
            let middle = (sum << 1).wrapping_add(one);
            sum = (sum << 2).wrapping_add((one << 1).wrapping_add(two));
            let at = 8 * nth + 2 * pair;
            if middle < limit {
                return Ok(at + 1);
            }
            if sum < limit {
                return Ok(at + 2);
            }
        }
    }
    for (at, byte) in rest.iter().enumerate() {
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if sum < limit {
            return Ok(8 * groups.len() + at + 1);
        }
    }
    Err(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        std::iter::repeat_with(&mut next).take(len).collect()
    }

    #[test]
    fn chunks_are_within_their_bounds_and_near_the_average() {
        let bytes = noise(16 << 20);
        let pieces: Vec<_> = CONTENT.pieces(&bytes).collect();
        assert_eq!(pieces.concat(), bytes);
        let (last, others) = pieces.split_last().expect("there are some");
        assert!(last.len() <= 128 << 10);
        assert!(others.iter().all(|piece| (8 << 10..=128 << 10).contains(&piece.len())));
        let average = bytes.len() / pieces.len();
        assert!((28 << 10..36 << 10).contains(&average), "{average}");
    }

    #[test]
    fn bytes_without_a_cut_point_are_cut_at_the_maximum_length() {
        let zeros = vec![0; 300 << 10];
        let lens: Vec<_> = CONTENT.pieces(&zeros).map(<[u8]>::len).collect();
        assert_eq!(lens, [128 << 10, 128 << 10, 44 << 10]);
        assert_eq!(CONTENT.cut_point(&zeros), None);
    }

    #[test]
    fn short_content_is_one_chunk() {
        for len in [1, 64, 8 << 10] {
            assert_eq!(CONTENT.first_len(&noise(len)), len);
        }
        assert_eq!(CONTENT.pieces(&[]).count(), 0);
        assert_eq!(CONTENT.cut_point(&noise(63)), None);
    }

    #[test]
    fn inserted_bytes_do_not_move_later_cut_points() {
        let bytes = noise(2 << 20);
        let mut moved = noise(12_345);
        moved.extend_from_slice(&bytes);
        let ends = |bytes: &[u8]| -> Vec<usize> {
            // Compare the number of bytes after each cut, because these bytes are equal in both.
            let lens = CONTENT.pieces(bytes).map(<[u8]>::len);
            let left = lens.scan(bytes.len(), |left, len| {
                *left -= len;
                Some(*left)
            });
            left.collect()
        };
        let (before, after) = (ends(&bytes), ends(&moved));
        let kept = before.iter().filter(|end| after.contains(end)).count();
        assert!(kept * 10 > before.len() * 8, "{kept} of {}", before.len());
    }

    #[test]
    fn a_cut_point_depends_only_on_the_window_before_it() {
        let bytes = noise(1 << 20);
        let cut_point = CONTENT.cut_point(&bytes).expect("there is one");
        assert_eq!(CONTENT.cut_point(&bytes[..cut_point]), Some(cut_point));
        assert_eq!(CONTENT.cut_point(&bytes[..cut_point - 1]), None);
        assert_eq!(CONTENT.cut_point(&bytes[cut_point - WINDOW - 1..]), Some(WINDOW + 1));
    }
}
