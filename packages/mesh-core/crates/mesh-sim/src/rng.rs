//! Seeded random numbers, which are the only randomness in a world.

/// The generator xoshiro256**, seeded through SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

/// One step of SplitMix64, which distributes a number over all 64 bits.
pub fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl Rng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        let mut word = seed;
        let state = std::array::from_fn(|_| {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            mix(word)
        });
        Self { state }
    }

    /// Creates an independent generator, so that draws of one part of a world do not affect others.
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// Draws a uniform 64-bit number.
    pub fn word(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Draws a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // For the bounds that worlds use, the bias of taking the high half is below 2^-32.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from `low` to `high`, both inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `permille` / 1,000.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// Picks one of the items; `None` if there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let bound = items.len() as u64;
        (bound > 0).then(|| &items[self.below(bound) as usize])
    }

    /// Draws an index with a probability proportional to its weight. Not all weights may be 0.
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
