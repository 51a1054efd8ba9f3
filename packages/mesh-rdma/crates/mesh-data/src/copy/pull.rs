//! Bytes that the owner of a buffer takes from another one, because somebody has asked for it.
#![expect(unsafe_code, reason = "writes registered memory")]

use crate::copy::grid::Grid;
use crate::copy::way::Target;
use crate::domain::Domain;
use crate::domain::registry::Memory;
use crate::error::DataError;
use crate::span::Span;
use crate::stop::Stop;
use std::sync::Arc;

/// How much one thread does at a time: a release of the destination waits for no more than that.
const PIECE_LEN: u64 = 4 << 20;

/// Says that a registration is being copied to or from, until it is dropped: a release waits for
/// that.
pub struct Pin {
    domain: Arc<Domain>,
    slot: u32,
    /// Which memory it is.
    pub memory: Memory,
}

impl Pin {
    /// Begins to.
    ///
    /// # Errors
    /// It was released, or may not be written and that is wanted.
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

/// A copy from any buffer to one of this process.
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
    /// Rows of `source`, that begin at `from` there, to the registration of this process from `to`
    /// on.
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
        // Said before the registration is looked at: a release waits until this is over.
        let _pin = Pin::of(&self.domain, self.slot, self.key, true)?;
        let to_len = self.grid.to_len().unwrap_or(u64::MAX);
        let room = self.domain.range(self.slot, self.key, self.to, to_len, true)?;
        let start = piece as u64 * PIECE_LEN;
        // SAFETY: the registration keeps the room mapped while the cell names it.
        unsafe { self.source.gather(&self.grid, start, PIECE_LEN, room, self.from, stop) }
    }
}
