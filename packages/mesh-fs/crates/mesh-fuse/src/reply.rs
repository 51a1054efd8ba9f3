//! The answer to a read, which may come late.

use crate::parked::Parked;
use rustix::io::Errno;
use std::sync::Arc;

/// The answer to one read. It may be given from any thread and at any time; dropped without one,
/// the read fails with `EIO`. It may outlive the mount, and is without effect then.
#[derive(Debug)]
#[must_use = "a read that is not answered fails"]
pub struct ReadReply {
    parked: Arc<Parked>,
    id: u64,
    len: u32,
}

impl ReadReply {
    pub(crate) fn new(parked: Arc<Parked>, id: u64, len: u32) -> Self {
        Self { parked, id, len }
    }

    /// Answers with bytes of the file, straight from where they are.
    ///
    /// Fewer than asked for say that the file ends behind them; what is beyond is cut off.
    pub fn bytes(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len as usize);
        self.answer(&[&bytes[..len]]);
    }

    /// As [`ReadReply::bytes`], with bytes that lie in several places.
    pub fn slices(self, slices: &[&[u8]]) {
        let mut left = self.len as usize;
        let cut = slices.iter().map(|slice| {
            let slice = &slice[..slice.len().min(left)];
            left -= slice.len();
            slice
        });
        let cut: Vec<_> = cut.filter(|slice| !slice.is_empty()).collect();
        self.answer(&cut);
    }

    /// Answers that the bytes cannot be read.
    pub fn error(self, error: Errno) {
        self.refuse(error);
    }

    /// Whether nobody waits for the bytes any more, because whoever did was interrupted or the
    /// mount is closed. [`FileSystem::abandon`](crate::FileSystem::abandon) tells of that as well.
    ///
    /// What the kernel reads ahead of anybody is never interrupted.
    pub fn is_interrupted(&self) -> bool {
        !self.parked.holds(self.id)
    }

    /// What this read is known by in [`FileSystem::abandon`](crate::FileSystem::abandon). No other
    /// of the same mount has the same.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn answer(&self, parts: &[&[u8]]) {
        if let Some(waiting) = self.parked.take(self.id) {
            // If the kernel does not wait any more, there is nobody to be told.
            let _ = waiting.device.answer(self.id, parts);
        }
    }

    fn refuse(&self, error: Errno) {
        if let Some(waiting) = self.parked.take(self.id) {
            waiting.device.refuse(self.id, error);
        }
    }
}

impl Drop for ReadReply {
    fn drop(&mut self) {
        // What was answered is not parked any more, and is left alone.
        self.refuse(Errno::IO);
    }
}
