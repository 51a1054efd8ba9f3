//! Where bytes are cut, so that what is equal is cut alike wherever it stands.
//!
//! A sum over the last 64 bytes, in which older ones weigh more, is looked at behind each byte: it
//! is a place to cut when the sum is small. Few sums are small enough while a chunk is short, and
//! many are afterwards, which keeps lengths near the average.

/// Bytes that a sum depends on.
const WINDOW: usize = 64;

/// What each value of a byte adds to the sum: numbers without a pattern.
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

/// How long chunks are.
#[derive(Debug)]
pub(crate) struct Cutter {
    min: usize,
    /// From this length on, places to cut are eight times as frequent as the average asks for.
    normal: usize,
    max: usize,
    /// Sums below this are places to cut while a chunk is short.
    strict: u64,
    /// Sums below this are places to cut afterwards.
    loose: u64,
}

/// How files are cut.
pub(crate) const CONTENT: Cutter = Cutter::new(8 << 10, 32 << 10, 128 << 10);
/// How descriptions are cut.
pub(crate) const DESCRIPTION: Cutter = Cutter::new(1 << 10, 4 << 10, 16 << 10);

impl Cutter {
    /// A short chunk is seldom cut; a longer one ends on average a quarter of `average` behind
    /// three quarters of it.
    const fn new(min: usize, average: usize, max: usize) -> Self {
        assert!(min >= WINDOW && min < average && average < max && average.is_power_of_two());
        let one_in = average.trailing_zeros();
        let (strict, loose) = (1 << (64 - one_in - 2), 1 << (64 - one_in + 2));
        Self { min, normal: average / 4 * 3, max, strict, loose }
    }

    /// No chunk is longer.
    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// How long the first chunk is. Bytes behind the longest are not looked at, and where there are
    /// fewer than that, they are the last ones.
    pub(crate) fn first(&self, bytes: &[u8]) -> usize {
        let bytes = &bytes[..bytes.len().min(self.max)];
        if bytes.len() <= self.min {
            return bytes.len();
        }
        let normal = self.normal.min(bytes.len());
        let sum = warm(&bytes[self.min - WINDOW..self.min]);
        match scan(sum, &bytes[self.min..normal], self.strict) {
            Ok(len) => self.min + len,
            Err(sum) => {
                let found = scan(sum, &bytes[normal..], self.loose);
                found.map_or(bytes.len(), |len| normal + len)
            }
        }
    }

    /// The first place that may be cut, if there is one, as for a chunk that is long enough.
    pub(crate) fn mark(&self, bytes: &[u8]) -> Option<usize> {
        let (head, rest) = bytes.split_at_checked(WINDOW)?;
        scan(warm(head), rest, self.loose).ok().map(|len| WINDOW + len)
    }

    /// The chunks of some bytes, in their order.
    pub(crate) fn pieces<'a>(&'a self, mut bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        std::iter::from_fn(move || {
            let (piece, rest) = bytes.split_at(self.first(bytes));
            bytes = rest;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

fn warm(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| (sum << 1).wrapping_add(GEAR[usize::from(*byte)]))
}

/// How many bytes there are up to a small sum, that which makes it small included; or the sum.
fn scan(mut sum: u64, bytes: &[u8], limit: u64) -> Result<usize, u64> {
    for (at, byte) in bytes.iter().enumerate() {
        sum = (sum << 1).wrapping_add(GEAR[usize::from(*byte)]);
        if sum < limit {
            return Ok(at + 1);
        }
    }
    Err(sum)
}
