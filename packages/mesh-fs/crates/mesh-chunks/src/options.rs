//! Options of a store.

/// Size limits and caching policy of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Maximum size of the folder in bytes, including indexes. The least recently used packs are
    /// evicted first. Packs that are being written are never evicted.
    pub budget_bytes: u64,
    /// Approximate length of a pack in bytes. Packs are smaller if fewer than eight of them would
    /// fit into the budget.
    pub pack_bytes: u64,
    /// Whether chunks that were read stay in the system's page cache. If false, a background thread
    /// writes their pages to the disk and evicts them within some seconds.
    pub keep_cached: bool,
}

/// Offsets in a pack have 32 bits; this limit reserves space for the last chunk.
const PACK_BYTES_MAX: u64 = 1 << 30;
/// Minimum number of packs in a full budget, so that an eviction removes only a part of the chunks.
const PACKS_MIN: u64 = 8;

impl Default for StoreOptions {
    fn default() -> Self {
        Self { budget_bytes: 20 << 30, pack_bytes: 64 << 20, keep_cached: true }
    }
}

impl StoreOptions {
    /// Length at which a pack is full. A pack holds at least one chunk of any length.
    pub(crate) fn pack_limit(&self) -> u64 {
        self.pack_bytes.min(self.budget_bytes / PACKS_MIN).clamp(1, PACK_BYTES_MAX)
    }

    /// Number of bytes that are written before the folder is measured again.
    pub(crate) fn stride(&self) -> u64 {
        (self.pack_limit() / 4).max(self.budget_bytes / 256)
    }
}
