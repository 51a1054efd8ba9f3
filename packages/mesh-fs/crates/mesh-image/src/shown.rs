//! A directory that shows one tree after another by images.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_chunks::Store;
use mesh_fuse::check_mountpoint;
use mesh_snapshot::Tree;

use crate::erofs;
use crate::error::ImageError;
use crate::mount_folder::MountFolder;
use crate::mount_stack::MountStack;
use crate::overlay::Overlay;
use crate::writer::Writer;

/// A directory that shows trees by images, until it is closed or dropped, or this process dies.
#[derive(Debug)]
pub struct Shown {
    folder: Arc<MountFolder>,
    writer: Writer,
    mounts: MountStack,
    overlay: Option<Overlay>,
}

/// Options for showing trees.
#[derive(Clone, Debug)]
pub struct ShownOptions {
    /// The host's cache folder.
    pub kept: PathBuf,
    /// Maximum size of an image in bytes.
    pub budget_bytes: u64,
    /// Whether programs of the host may write over the tree.
    pub is_writable: bool,
}

impl Shown {
    /// Opens an empty directory, and checks that images can be mounted on this machine.
    ///
    /// # Errors
    /// If [`ImageError::is_forbidden`] is true, use another backend; otherwise use another
    /// directory.
    pub fn open(mountpoint: &Path, options: &ShownOptions) -> Result<Self, ImageError> {
        let folder = Arc::new(MountFolder::make(&options.kept)?);
        erofs::try_out(&folder)?;
        let overlay = match options.is_writable {
            true => Some(Overlay::new(Arc::clone(&folder), mountpoint)?),
            false => None,
        };
        let mountpoint = match &overlay {
            Some(overlay) => overlay.lower().to_owned(),
            None => check_mountpoint(mountpoint, false)?,
        };
        let writer = Writer::new(folder.path(), options.budget_bytes);
        Ok(Self { folder, writer, mounts: MountStack::new(mountpoint), overlay })
    }

    /// Shows a tree, whose chunks must be in the store, and replaces the previous one atomically.
    ///
    /// An open sees either the old or the new tree. Files that are open stay in the old one.
    ///
    /// # Errors
    /// See [`Writer::write`]. The kernel may also refuse the mount. The previous tree stays
    /// visible.
    pub fn show(&mut self, tree: &Tree, store: &Store) -> Result<(), ImageError> {
        let image = self.writer.write(tree, store)?;
        let mounted = erofs::mount(&image);
        // The mount keeps the file alive.
        let _ = fs::remove_file(&image.path);
        let mount = mounted?;
        let failed = ImageError::system("mount an image", self.mounts.mountpoint());
        self.mounts.show(&mount).map_err(failed)?;
        self.overlay.as_mut().map_or(Ok(()), Overlay::show)
    }

    /// Returns whether it is mounted; false if someone else has unmounted it.
    pub fn is_open(&self) -> bool {
        self.overlay.as_ref().map_or_else(|| self.mounts.is_open(), Overlay::is_open)
    }

    /// Unmounts it, even if its files are open.
    ///
    /// # Errors
    /// Something else is mounted over it.
    pub fn close(&mut self) -> Result<(), ImageError> {
        let over = self.overlay.as_mut().map_or(Ok(()), Overlay::close);
        let failed = ImageError::system("unmount", self.mounts.mountpoint());
        let closed = over.and(self.mounts.unmount_all().map_err(failed));
        self.folder.close();
        closed
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // Call `close` to handle errors.
        let _ = self.close();
    }
}
