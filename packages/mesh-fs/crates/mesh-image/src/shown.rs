//! One tree after another at a directory, each by an image.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_chunks::Store;
use mesh_fuse::check_point;
use mesh_snapshot::Tree;

use crate::erofs;
use crate::error::ImageError;
use crate::folder::Folder;
use crate::mounting::Place;
use crate::overlay::Overlay;
use crate::writer::Writer;

/// A directory that shows trees by images, until this is closed or dropped, or until this process
/// dies.
#[derive(Debug)]
pub struct Shown {
    folder: Arc<Folder>,
    writer: Writer,
    place: Place,
    overlay: Option<Overlay>,
}

/// How trees are shown.
#[derive(Clone, Debug)]
pub struct ShownOptions {
    /// The folder of what the host keeps.
    pub kept: PathBuf,
    /// How many bytes an image may take.
    pub budget_bytes: u64,
    /// Whether programs of the host may write over the tree.
    pub is_writable: bool,
}

impl Shown {
    /// Takes an empty directory, and sees whether images can be mounted on this machine.
    ///
    /// # Errors
    /// [`ImageError::is_forbidden`]: take another way; others: take another directory.
    pub fn open(point: &Path, options: &ShownOptions) -> Result<Self, ImageError> {
        let folder = Arc::new(Folder::make(&options.kept)?);
        erofs::try_out(&folder)?;
        let overlay = match options.is_writable {
            true => Some(Overlay::new(Arc::clone(&folder), point)?),
            false => None,
        };
        let point = match &overlay {
            Some(overlay) => overlay.lower().to_owned(),
            None => check_point(point, false)?,
        };
        let writer = Writer::new(folder.path(), options.budget_bytes);
        Ok(Self { folder, writer, place: Place::new(point), overlay })
    }

    /// Shows a tree, whose chunks are in a store, in the place of the one before: who opens
    /// something sees the one or the other, and who has it open goes on in the one before.
    ///
    /// # Errors
    /// See [`Writer::write`]; and the kernel may refuse to mount it. The tree before is shown then.
    pub fn show(&mut self, tree: &Tree, store: &Store) -> Result<(), ImageError> {
        let image = self.writer.write(tree, store)?;
        let mounted = erofs::mount(&image);
        // The kernel holds on to what it has mounted.
        let _ = fs::remove_file(&image.path);
        let mount = mounted?;
        let failed = ImageError::system("mount an image", self.place.point());
        self.place.show(&mount).map_err(failed)?;
        self.overlay.as_mut().map_or(Ok(()), Overlay::show)
    }

    /// Whether nobody else has taken it away.
    pub fn is_open(&self) -> bool {
        self.overlay.as_ref().map_or_else(|| self.place.is_open(), Overlay::is_open)
    }

    /// Takes it away, even if files of it are open.
    ///
    /// # Errors
    /// Something else is mounted over it.
    pub fn close(&mut self) -> Result<(), ImageError> {
        let over = self.overlay.as_mut().map_or(Ok(()), Overlay::close);
        let failed = ImageError::system("unmount", self.place.point());
        let closed = over.and(self.place.clear().map_err(failed));
        self.folder.close();
        closed
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // Who wants to know closes it.
        let _ = self.close();
    }
}
