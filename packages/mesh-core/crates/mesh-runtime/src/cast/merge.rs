//! Aggregation of the replies to a cast.

/// The effect of a reply on a merge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// None: the rank was not expected, or has already replied.
    Ignored,
    /// More replies are expected.
    Waiting,
    /// This was the last reply. Reported once.
    Complete,
}

/// Collects one reply from each expected rank, in any order.
///
/// Memory is bounded by the expected ranks: unexpected replies are not stored.
///
/// ```
/// use mesh_runtime::cast::{Merge, Progress};
/// let mut merge = Merge::new([4, 5, 6]);
/// assert_eq!(merge.add(5, "five"), Progress::Waiting);
/// assert_eq!(merge.add(5, "again"), Progress::Ignored);
/// assert_eq!(merge.skip_ranks([4, 6]), Progress::Complete);
/// assert_eq!(merge.take(), [(5, "five")]);
/// ```
#[derive(Debug)]
pub struct Merge<A> {
    open: RankSet,
    collected: Vec<(u32, A)>,
}

impl<A> Merge<A> {
    /// Creates a merge that waits for one reply from each of these ranks.
    ///
    /// Without ranks it is complete.
    pub fn new(expected: impl IntoIterator<Item = u32>) -> Self {
        Self { open: RankSet::new(expected), collected: Vec::new() }
    }

    /// Adds the reply of one rank.
    pub fn add(&mut self, rank: u32, reply: A) -> Progress {
        if !self.open.remove(rank) {
            return Progress::Ignored;
        }
        self.collected.push((rank, reply));
        self.progress()
    }

    /// Stops waiting for some ranks, and collects nothing for them.
    pub fn skip_ranks(&mut self, ranks: impl IntoIterator<Item = u32>) -> Progress {
        let before = self.open.len;
        for rank in ranks {
            self.open.remove(rank);
        }
        if self.open.len == before { Progress::Ignored } else { self.progress() }
    }

    /// Takes the replies collected since the last call, in the order of arrival.
    pub fn take(&mut self) -> Vec<(u32, A)> {
        std::mem::take(&mut self.collected)
    }

    /// Returns the number of replies that can be taken now.
    pub fn collected_count(&self) -> usize {
        self.collected.len()
    }

    /// Whether every expected rank has replied.
    pub fn is_complete(&self) -> bool {
        self.open.len == 0
    }

    /// Whether a reply of the rank is still expected.
    pub fn is_open(&self, rank: u32) -> bool {
        self.open.contains(rank)
    }

    fn progress(&self) -> Progress {
        if self.is_complete() { Progress::Complete } else { Progress::Waiting }
    }
}

/// A set of ranks, one bit each from the lowest to the highest.
#[derive(Debug)]
struct RankSet {
    first: u32,
    bits: Vec<u64>,
    len: usize,
}

impl RankSet {
    fn new(ranks: impl IntoIterator<Item = u32>) -> Self {
        let ranks: Vec<u32> = ranks.into_iter().collect();
        let first = ranks.iter().min().copied().unwrap_or(0);
        let last = ranks.iter().max().copied().unwrap_or(0);
        let mut set = Self { first, bits: vec![0; (last - first) as usize / 64 + 1], len: 0 };
        for rank in ranks {
            let (word, bit) = set.place(rank).expect("the set spans the lowest to the highest");
            set.len += usize::from(set.bits[word] & bit == 0);
            set.bits[word] |= bit;
        }
        set
    }

    fn contains(&self, rank: u32) -> bool {
        self.place(rank).is_some_and(|(word, bit)| self.bits[word] & bit != 0)
    }

    fn remove(&mut self, rank: u32) -> bool {
        let Some((word, bit)) = self.place(rank) else { return false };
        let was_there = self.bits[word] & bit != 0;
        self.bits[word] &= !bit;
        self.len -= usize::from(was_there);
        was_there
    }

    fn place(&self, rank: u32) -> Option<(usize, u64)> {
        let at = rank.checked_sub(self.first)? as usize;
        (at / 64 < self.bits.len()).then_some((at / 64, 1 << (at % 64)))
    }
}
