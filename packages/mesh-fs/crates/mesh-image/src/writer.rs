//! Images of one tree after another, in a folder; they share the blocks of files.

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
    /// The image: all but the blocks of files.
    pub path: PathBuf,
    /// Those blocks, which the image names as a further device; none if there are none.
    pub blocks: Option<PathBuf>,
}

/// Writes images of one tree after another.
///
/// What a file has is written once, however many images and files have it. When most of what was
/// written is in no use any more, the next image begins with blocks of its own.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    budget: u64,
    blocks: Option<Blocks>,
    /// How many files were made, of any kind.
    made: u64,
}

impl Writer {
    /// Writes into a folder of its own; each image takes at most so many bytes, with its blocks.
    pub fn new(folder: &Path, budget: u64) -> Self {
        Self { folder: folder.to_owned(), budget, blocks: None, made: 0 }
    }

    /// Writes the image of a tree, whose chunks are in a store.
    ///
    /// # Errors
    /// [`ImageError::Missing`]: the store has not all chunks; [`ImageError::Full`] and
    /// [`ImageError::OverBudget`]: there is no room. Nothing is left then, and images before are as
    /// they were.
    pub fn write(&mut self, tree: &Tree, store: &Store) -> Result<Image, ImageError> {
        let mut blocks = match self.blocks.take() {
            Some(blocks) => blocks,
            None => Blocks::make(self.next_path("blocks"))?,
        };
        let mut planned = plan(tree, &mut blocks);
        if planned.is_ok() && blocks.is_wasteful() {
            // The old ones go when nobody reads an older image any more.
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
