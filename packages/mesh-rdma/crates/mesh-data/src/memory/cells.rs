//! The registrations in use: cells that a user writes and the owner reads.
//!
//! A process that copies to or from memory of another process writes the slot into a cell of a page
//! that both map, checks that the key is still valid, copies, and clears the cell. An owner that
//! releases a registration reads the cells afterwards: a slot that no cell contains is not in use.
//! When a user dies, its page is removed.

use crate::memory::shared_map::SharedMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

/// The number of cells for copies, which are short: one per concurrent copy.
const COPY_COUNT: usize = 64;
/// The distance between two of them in words: a cache line.
const COPY_STRIDE: usize = 8;
/// The number of cells for views, which are long-lived: adjacent words after the cells for copies.
const VIEW_COUNT: usize = 512;
const VIEW_START: usize = COPY_COUNT * COPY_STRIDE;
const LEN: usize = (VIEW_START + VIEW_COUNT) * 8;

/// The cells of one user, as seen by that user or by an owner.
#[derive(Debug)]
pub struct Cells {
    map: SharedMap,
    /// The bit mask of the cells for copies in use, on the user's side only.
    taken: AtomicU64,
}

/// A cell in use; it is cleared when this is dropped.
#[derive(Debug)]
pub struct CopyGuard<'a> {
    cells: &'a Cells,
    cell: usize,
}

impl Cells {
    /// Creates the cells of this process at one owner.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub fn create() -> io::Result<Self> {
        Ok(Self { map: SharedMap::create("mesh-rdma-cells", LEN)?, taken: AtomicU64::new(0) })
    }

    /// Opens the cells of another process.
    ///
    /// # Errors
    /// The cells cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { map: SharedMap::open(fd, LEN, false)?, taken: AtomicU64::new(u64::MAX) })
    }

    /// The memory file, for the owner.
    pub fn map(&self) -> &SharedMap {
        &self.map
    }

    /// Announces that this process copies to or from a slot. Check the key afterwards, not before.
    ///
    /// Waits while all cells for copies are in use.
    pub fn copying(&self, slot: u32) -> CopyGuard<'_> {
        CopyGuard { cells: self, cell: self.enter(slot) }
    }

    /// Like [`Cells::copying`], for callers that end it with [`Cells::leave`]; returns the cell.
    pub fn enter(&self, slot: u32) -> usize {
        let cell = self.take();
        self.map.word(cell * COPY_STRIDE).store(u64::from(slot) + 1, SeqCst);
        cell
    }

    /// Ends an announcement of [`Cells::enter`].
    pub fn leave(&self, cell: usize) {
        self.map.word(cell * COPY_STRIDE).store(0, Release);
        self.taken.fetch_and(!(1 << cell), AcqRel);
    }

    fn take(&self) -> usize {
        loop {
            let taken = self.taken.load(Relaxed);
            let free = taken.trailing_ones() as usize;
            if free == COPY_COUNT {
                std::thread::yield_now();
                continue;
            }
            let with = taken | 1 << free;
            if self.taken.compare_exchange_weak(taken, with, AcqRel, Relaxed).is_ok() {
                return free;
            }
        }
    }

    /// Announces that this process views bytes of a slot; returns the cell, or `None` if all cells
    /// are in use. Check the key afterwards, not before.
    pub fn begin_view(&self, slot: u32) -> Option<usize> {
        let wanted = u64::from(slot) + 1;
        (VIEW_START..VIEW_START + VIEW_COUNT)
            .find(|cell| self.map.word(*cell).compare_exchange(0, wanted, SeqCst, Relaxed).is_ok())
    }

    /// Ends a view.
    pub fn end_view(&self, cell: usize) {
        self.map.word(cell).store(0, Release);
    }

    /// Whether a copy to or from the slot is in progress.
    pub fn is_copying(&self, slot: u32) -> bool {
        let named = u64::from(slot) + 1;
        (0..COPY_COUNT).any(|cell| self.map.word(cell * COPY_STRIDE).load(SeqCst) == named)
    }

    /// Whether bytes of the slot are viewed.
    pub fn is_viewing(&self, slot: u32) -> bool {
        let named = u64::from(slot) + 1;
        (VIEW_START..VIEW_START + VIEW_COUNT).any(|cell| self.map.word(cell).load(SeqCst) == named)
    }
}

impl Drop for CopyGuard<'_> {
    fn drop(&mut self) {
        self.cells.leave(self.cell);
    }
}
