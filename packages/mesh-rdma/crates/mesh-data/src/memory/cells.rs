//! Who is using which registration right now: cells that a user fills in and the owner reads.
//!
//! A process that copies to or from memory of another writes the slot into a cell of a page that
//! both map, looks whether the key is still good, copies, and clears the cell. An owner that takes
//! a registration back looks at the cells afterwards: what is in none of them is used by nobody.
//! When a user dies, its page goes with it.

use crate::memory::shared_map::SharedMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

/// Cells of copies, which are short: one for each that runs at a time.
const COPY_COUNT: usize = 64;
/// Words from one of them to the next: a cache line.
const COPY_STRIDE: usize = 8;
/// Cells of loans, which are long: side by side behind those.
const LOAN_COUNT: usize = 512;
const LOAN_START: usize = COPY_COUNT * COPY_STRIDE;
const LEN: usize = (LOAN_START + LOAN_COUNT) * 8;

/// One user's cells, as that user or as an owner.
#[derive(Debug)]
pub struct Cells {
    map: SharedMap,
    /// Which of the copies' cells are taken, a bit each. Of the user's side only.
    taken: AtomicU64,
}

/// One cell; it is cleared when this is dropped.
#[derive(Debug)]
pub struct Use<'a> {
    cells: &'a Cells,
    cell: usize,
}

impl Cells {
    /// Those of this process at one owner.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn create() -> io::Result<Self> {
        Ok(Self { map: SharedMap::create("mesh-rdma-cells", LEN)?, taken: AtomicU64::new(0) })
    }

    /// Those of another process.
    ///
    /// # Errors
    /// They cannot be mapped.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { map: SharedMap::open(fd, LEN, false)?, taken: AtomicU64::new(u64::MAX) })
    }

    /// The memory file, for the owner.
    pub fn map(&self) -> &SharedMap {
        &self.map
    }

    /// Says that this process copies to or from a slot. Look at the key afterwards, not before.
    ///
    /// Waits while as many copies run as there are cells.
    pub fn copying(&self, slot: u32) -> Use<'_> {
        Use { cells: self, cell: self.enter(slot) }
    }

    /// As [`Cells::copying`], for who ends it by [`Cells::leave`]; gives the cell.
    pub fn enter(&self, slot: u32) -> usize {
        let cell = self.take();
        self.map.word(cell * COPY_STRIDE).store(u64::from(slot) + 1, SeqCst);
        cell
    }

    /// Ends what was said by [`Cells::enter`].
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

    /// Says that this process keeps bytes of a slot in view; gives the cell, or none when all are
    /// taken. Look at the key afterwards, not before.
    pub fn borrow(&self, slot: u32) -> Option<usize> {
        let wanted = u64::from(slot) + 1;
        (LOAN_START..LOAN_START + LOAN_COUNT)
            .find(|cell| self.map.word(*cell).compare_exchange(0, wanted, SeqCst, Relaxed).is_ok())
    }

    /// Ends a loan.
    pub fn give_back(&self, cell: usize) {
        self.map.word(cell).store(0, Release);
    }

    /// Whether a copy to or from the slot is under way.
    pub fn is_copying(&self, slot: u32) -> bool {
        let named = u64::from(slot) + 1;
        (0..COPY_COUNT).any(|cell| self.map.word(cell * COPY_STRIDE).load(SeqCst) == named)
    }

    /// Whether bytes of the slot are in view.
    pub fn is_borrowing(&self, slot: u32) -> bool {
        let named = u64::from(slot) + 1;
        (LOAN_START..LOAN_START + LOAN_COUNT).any(|cell| self.map.word(cell).load(SeqCst) == named)
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        self.cells.leave(self.cell);
    }
}
