//! Copies into a buffer that its owner executes on request of another process.
#![expect(unsafe_code, reason = "writes registered memory")]

use crate::copy::grid::Grid;
use crate::copy::target::Target;
use crate::domain::Domain;
use crate::domain::registry::Memory;
use crate::error::DataError;
use crate::span::Span;
use crate::stop::Stop;
use std::sync::Arc;

/// The number of bytes per piece; a release of the destination waits for at most one piece per
/// thread.
const PIECE_LEN: u64 = 4 << 20;

/// Announces until it is dropped that a registration is being copied to or from; a release waits
/// for it.
pub struct Pin {
    domain: Arc<Domain>,
    slot: u32,
    /// The memory of the registration.
    pub memory: Memory,
}

impl Pin {
    /// Pins a registration.
    ///
    /// # Errors
    /// The registration was released, or `is_write` is set and it is read-only.
    pub fn of(
        domain: &Arc<Domain>,
        slot: u32,
        key: u64,
        is_write: bool,
    ) -> Result<Self, DataError> {
        domain.pin(slot);
        let none = Memory { span: Span { start: 0, len: 0 }, is_writable: false, device: None };
        let mut pin = Self { domain: Arc::clone(domain), slot, memory: none };
        pin.memory = domain.region(slot, key).ok_or(DataError::Released)?;
        let may = pin.memory.is_writable || !is_write;
        if may { Ok(pin) } else { Err(DataError::ReadOnly) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.domain.unpin(self.slot);
    }
}

/// A copy from any buffer to a buffer of this process.
pub struct Pull {
    source: Arc<Target>,
    from: u64,
    domain: Arc<Domain>,
    slot: u32,
    key: u64,
    to: u64,
    grid: Grid,
}

impl Pull {
    /// A copy of rows of `source`, starting at `from` there, to a registration of this process,
    /// starting at `to`.
    pub fn new(
        source: Arc<Target>,
        from: u64,
        domain: Arc<Domain>,
        (slot, key): (u32, u64),
        to: u64,
        grid: Grid,
    ) -> Self {
        Self { source, from, domain, slot, key, to, grid }
    }

    pub(crate) fn source(&self) -> &Target {
        &self.source
    }

    pub(crate) fn piece_count(&self) -> usize {
        usize::try_from(self.grid.len().div_ceil(PIECE_LEN)).unwrap_or(usize::MAX).max(1)
    }

    pub(crate) fn run(&self, piece: usize, stop: &Stop) -> Result<(), DataError> {
        // The pin precedes the lookup of the registration, so that a release waits for this copy.
        let _pin = Pin::of(&self.domain, self.slot, self.key, true)?;
        let to_len = self.grid.to_len().unwrap_or(u64::MAX);
        let buffer = self.domain.range(self.slot, self.key, self.to, to_len, true)?;
        let start = piece as u64 * PIECE_LEN;
        // SAFETY: the registration keeps `buffer` mapped while it is pinned.
        unsafe { self.source.gather(&self.grid, start, PIECE_LEN, buffer, self.from, stop) }
    }
}
