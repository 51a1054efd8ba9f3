//! What a store is told when it is opened.

/// How much a store keeps, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// How many bytes the folder may have, with all that belongs to the chunks in it. What was not
    /// used for longest goes first; the packs that are being written stay in any case.
    pub budget_bytes: u64,
    /// About how long one pack gets. Packs are smaller where the budget would have fewer than
    /// eight of them.
    pub pack_bytes: u64,
    /// Whether what was read stays in the system's page cache; if not, it is written to the disk
    /// and dropped from there within some seconds, by a thread that nobody waits for.
    pub keep_cached: bool,
}

/// Offsets in a pack have 32 bits, with room to spare for the last chunk.
const PACK_BYTES_MAX: u64 = 1 << 30;
/// Into how many packs the smallest budget is divided, so that not all goes at once.
const PACKS_MIN: u64 = 8;

impl Default for StoreOptions {
    fn default() -> Self {
        Self { budget_bytes: 20 << 30, pack_bytes: 64 << 20, keep_cached: true }
    }
}

impl StoreOptions {
    /// From which length on a pack takes no more; one chunk it takes always.
    pub(crate) fn pack_limit(&self) -> u64 {
        self.pack_bytes.min(self.budget_bytes / PACKS_MIN).clamp(1, PACK_BYTES_MAX)
    }

    /// How many bytes are written until the folder is measured again.
    pub(crate) fn stride(&self) -> u64 {
        (self.pack_limit() / 4).max(self.budget_bytes / 256)
    }
}
