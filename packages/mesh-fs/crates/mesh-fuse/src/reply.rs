//! Reply to a read, which may be sent later.

use crate::suspended_reads::SuspendedReads;
use rustix::io::Errno;
use std::sync::Arc;

/// Reply to a read, which may be sent from any thread and at any time.
///
/// If it is dropped without a reply, the read fails with `EIO`. It may outlive the mount, and has
/// no effect then.
#[derive(Debug)]
#[must_use = "a read that is not answered fails"]
pub struct ReadReply {
    suspended_reads: Arc<SuspendedReads>,
    id: u64,
    len: u32,
}

impl ReadReply {
    pub(crate) fn new(suspended_reads: Arc<SuspendedReads>, id: u64, len: u32) -> Self {
        Self { suspended_reads, id, len }
    }

    /// Replies with bytes of the file, without copying them.
    ///
    /// Fewer bytes than requested mean that the file ends after them; excess bytes are ignored.
    pub fn bytes(self, bytes: &[u8]) {
        let len = bytes.len().min(self.len as usize);
        self.answer(&[&bytes[..len]]);
    }

    /// Replies as [`ReadReply::bytes`] does, with bytes in several slices.
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

    /// Replies with an error.
    pub fn error(self, error: Errno) {
        self.refuse(error);
    }

    /// Returns whether the read was cancelled: its process was interrupted, or the mount is closed.
    ///
    /// [`FileSystem::abandon`](crate::FileSystem::abandon) is called in this case as well.
    /// Read-ahead of the kernel is never interrupted.
    pub fn is_interrupted(&self) -> bool {
        !self.suspended_reads.contains(self.id)
    }

    /// Id of this read in [`FileSystem::abandon`](crate::FileSystem::abandon), unique in the mount.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn answer(&self, parts: &[&[u8]]) {
        if let Some(read) = self.suspended_reads.take(self.id) {
            // Ignore errors: the kernel may not be waiting for the reply any more.
            let _ = read.device.answer(self.id, parts);
        }
    }

    fn refuse(&self, error: Errno) {
        if let Some(read) = self.suspended_reads.take(self.id) {
            read.device.refuse(self.id, error);
        }
    }
}

impl Drop for ReadReply {
    fn drop(&mut self) {
        // Has no effect if a reply was sent.
        self.refuse(Errno::IO);
    }
}
