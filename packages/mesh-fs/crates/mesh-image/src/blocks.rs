//! The blocks of files: in one file that only grows, which all images of a mount use.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mesh_chunks::ChunkId;

use crate::error::ImageError;
use crate::format::BLOCK;

/// So many blocks that no image uses any more are not worth copying the others.
const WASTE_MIN: u32 = (64 << 20) / BLOCK as u32;

/// Blocks of files on disk, and where those of each file are.
///
/// What was kept is never written again: somebody may be reading it in an older image.
#[derive(Debug)]
pub(crate) struct Blocks {
    path: PathBuf,
    file: File,
    /// Blocks of files by their content: the first one.
    kept: HashMap<ChunkId, u32>,
    /// Blocks that are in use by what is kept, and will be by what is being written.
    kept_len: u32,
    len: u32,
    /// What was given out since the last [`Blocks::keep`], and how many blocks of it.
    fresh: HashMap<ChunkId, u32>,
    /// Which of what was kept is used by the image that is being planned.
    used_len: u64,
    used: HashMap<ChunkId, ()>,
}

impl Blocks {
    /// Makes the file.
    pub(crate) fn make(path: PathBuf) -> Result<Self, ImageError> {
        let failed = ImageError::system("make a file", &path);
        let options =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).clone();
        let file = options.open(&path).map_err(failed)?;
        let (kept, fresh, used) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { path, file, kept, kept_len: 0, len: 0, fresh, used_len: 0, used })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Gives the first block of some content, and whether it has to be written there.
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

    /// Notes that all that was given out has been written.
    pub(crate) fn keep(&mut self) -> Result<(), ImageError> {
        // The last block of a file ends where the file does, and the kernel reads whole ones.
        let failed = ImageError::system("write a file", &self.path);
        self.file.set_len(u64::from(self.len) * BLOCK).map_err(failed)?;
        self.kept.extend(self.fresh.drain());
        self.kept_len = self.len;
        self.begin();
        Ok(())
    }

    /// Takes back what was given out.
    pub(crate) fn give_up(&mut self) {
        self.fresh.clear();
        self.len = self.kept_len;
        // If this fails, there is less room and nothing else is wrong.
        let _ = self.file.set_len(u64::from(self.len) * BLOCK);
        self.begin();
    }

    fn begin(&mut self) {
        self.used.clear();
        self.used_len = 0;
    }

    /// Whether more than half of them are of no use to the image that was planned.
    pub(crate) fn is_wasteful(&self) -> bool {
        let unused = u64::from(self.len).saturating_sub(self.used_len);
        unused > u64::from(WASTE_MIN) && unused * 2 > u64::from(self.len)
    }
}
