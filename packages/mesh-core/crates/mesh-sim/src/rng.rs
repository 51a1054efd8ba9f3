//! Random numbers from a seed: the only randomness in a world.

/// xoshiro256**, seeded through SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of SplitMix64: spreads a number over all 64 bits.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let state = std::array::from_fn(|_| {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(word)
        });
        Self { state }
    }

    /// Another sequence, so that what one part of a world draws leaves the others alone.
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// Any number.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the high half is below 2^-32 for the bounds that worlds use.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `permille` of 1,000 cases.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of the items; nothing when there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let bound = items.len() as u64;
        (bound > 0).then(|| &items[self.below(bound) as usize])
    }

    /// An index, as likely as its weight; the weights are not all 0.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut left = self.below(weights.iter().sum());
        weights
            .iter()
            .position(|weight| {
                let is_it = left < *weight;
                left = left.saturating_sub(*weight);
                is_it
            })
            .expect("the draw is below the sum of the weights")
    }
}
