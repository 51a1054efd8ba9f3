//! Data blocks of files, in an append-only file that all images of a mount share.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mesh_chunks::ChunkId;

use crate::error::ImageError;
use crate::format::BLOCK;

/// Minimum number of unused blocks that justifies copying the used ones into a new file.
const WASTE_MIN: u32 = (64 << 20) / BLOCK as u32;

/// Data blocks of files on disk, and the location of each file.
///
/// Completed blocks are never overwritten: a process may be reading them through an older image.
#[derive(Debug)]
pub(crate) struct Blocks {
    path: PathBuf,
    file: File,
    /// First block of each content that has been written.
    kept: HashMap<ChunkId, u32>,
    /// Number of blocks of completed content, and number including reserved blocks.
    kept_len: u32,
    len: u32,
    /// First block of each content that was reserved since the last [`Blocks::keep`].
    fresh: HashMap<ChunkId, u32>,
    /// Number of blocks that the image being planned uses, and their contents.
    used_len: u64,
    used: HashMap<ChunkId, ()>,
}

impl Blocks {
    /// Creates the file.
    pub(crate) fn make(path: PathBuf) -> Result<Self, ImageError> {
        let failed = ImageError::system("make a file", &path);
        let options =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).clone();
        let file = options.open(&path).map_err(failed)?;
        let (kept, fresh, used) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { path, file, kept, kept_len: 0, len: 0, fresh, used_len: 0, used })
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the first block for some content, and whether the content must be written there.
    pub(crate) fn take(&mut self, content: ChunkId, count: u64) -> Result<(u32, bool), ImageError> {
        if count == 0 {
            return Ok((0, false));
        }
        if self.used.insert(content, ()).is_none() {
            self.used_len += count;
        }
        if let Some(start) = self.kept.get(&content).or_else(|| self.fresh.get(&content)) {
            return Ok((*start, false));
        }
        let start = self.len;
        let end = u64::from(start) + count;
        self.len = u32::try_from(end).map_err(|_| ImageError::TooLarge)?;
        self.fresh.insert(content, start);
        Ok((start, true))
    }

    /// Marks all reserved blocks as written.
    pub(crate) fn keep(&mut self) -> Result<(), ImageError> {
        // A file may end within its last block, but the kernel reads whole blocks.
        let failed = ImageError::system("write a file", &self.path);
        self.file.set_len(u64::from(self.len) * BLOCK).map_err(failed)?;
        self.kept.extend(self.fresh.drain());
        self.kept_len = self.len;
        self.begin();
        Ok(())
    }

    /// Releases all reserved blocks.
    pub(crate) fn give_up(&mut self) {
        self.fresh.clear();
        self.len = self.kept_len;
        // If this fails, disk space is wasted, but nothing else is wrong.
        let _ = self.file.set_len(u64::from(self.len) * BLOCK);
        self.begin();
    }

    fn begin(&mut self) {
        self.used.clear();
        self.used_len = 0;
    }

    /// Returns whether the planned image uses less than half of the blocks.
    pub(crate) fn is_wasteful(&self) -> bool {
        let unused = u64::from(self.len).saturating_sub(self.used_len);
        unused > u64::from(WASTE_MIN) && unused * 2 > u64::from(self.len)
    }
}
