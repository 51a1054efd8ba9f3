//! Writing images of one tree after another into a folder.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use mesh_chunks::Store;
use mesh_snapshot::Tree;

use crate::blocks::Blocks;
use crate::content;
use crate::error::ImageError;
use crate::format::BLOCK;
use crate::inodes;
use crate::plan::{Plan, plan};

/// An image on disk.
#[derive(Debug)]
pub struct Image {
    /// The image without the data blocks of files.
    pub path: PathBuf,
    /// The data blocks, to which the image refers as an additional device; `None` if it has none.
    pub blocks: Option<PathBuf>,
}

/// Writes images of one tree after another.
///
/// The content of a file is written once for all files and images that contain it. When most of the
/// data blocks are unused, the next image starts a new file of blocks.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    budget: u64,
    blocks: Option<Blocks>,
    /// Number of files created, of any kind.
    made: u64,
}

impl Writer {
    /// Creates a writer for a dedicated folder. `budget` is the maximum size in bytes of an image
    /// with its blocks.
    pub fn new(folder: &Path, budget: u64) -> Self {
        Self { folder: folder.to_owned(), budget, blocks: None, made: 0 }
    }

    /// Writes the image of a tree, whose chunks must be in the store.
    ///
    /// # Errors
    /// [`ImageError::Missing`]: the store does not contain all chunks; [`ImageError::Full`] and
    /// [`ImageError::OverBudget`]: no space is left. On an error, partial files are removed and
    /// earlier images are unchanged.
    pub fn write(&mut self, tree: &Tree, store: &Store) -> Result<Image, ImageError> {
        let mut blocks = match self.blocks.take() {
            Some(blocks) => blocks,
            None => Blocks::make(self.next_path("blocks"))?,
        };
        let mut planned = plan(tree, &mut blocks);
        if planned.is_ok() && blocks.is_wasteful() {
            // The old blocks are freed when no older image is in use any more.
            let _ = fs::remove_file(blocks.path());
            blocks = Blocks::make(self.next_path("blocks"))?;
            planned = plan(tree, &mut blocks);
        }
        let path = self.next_path("erofs");
        let written = planned.and_then(|plan| self.fill(&path, tree, store, &plan, &blocks));
        let kept = written.and_then(|()| blocks.keep());
        if kept.is_err() {
            blocks.give_up();
            let _ = fs::remove_file(&path);
        }
        let image = Image { path, blocks: (blocks.len() > 0).then(|| blocks.path().to_owned()) };
        self.blocks = Some(blocks);
        kept.map(|()| image)
    }

    fn fill(
        &self,
        path: &Path,
        tree: &Tree,
        store: &Store,
        plan: &Plan,
        blocks: &Blocks,
    ) -> Result<(), ImageError> {
        let bytes = (u64::from(plan.blocks) + u64::from(blocks.len())) * BLOCK;
        if bytes > self.budget {
            return Err(ImageError::OverBudget { bytes, budget: self.budget });
        }
        let image = make(path)?;
        inodes::write(&image, tree, plan, blocks.len())
            .map_err(ImageError::system("write an image", path))?;
        content::write(tree, store, plan, content::Targets { image: &image, blocks, path })
    }

    fn next_path(&mut self, kind: &str) -> PathBuf {
        self.made += 1;
        self.folder.join(format!("{}.{kind}", self.made))
    }
}

fn make(path: &Path) -> Result<File, ImageError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).map_err(ImageError::system("make a file", path))
}
