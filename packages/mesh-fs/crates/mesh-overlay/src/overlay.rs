//! Writes of one host over a tree, visible on that host only.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_fuse::check_mountpoint;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::io::Errno;

use crate::error::OverlayError;
use crate::mount_folder::MountFolder;
use crate::mount_stack::{MountFailure, MountStack, descriptor_path, make, open_directory};

const KIND: &str = "overlay";
const WHAT: &str = "writing over files of the client";
const REMEDY: &str = "run as root, on a kernel with overlayfs, and with the host's cache on a \
                      local disk or a tmpfs; or use backend=\"unpack\"";

/// A mount that combines a tree with the writes of this host.
#[derive(Debug)]
pub struct Overlay {
    folder: Arc<MountFolder>,
    mounts: MountStack,
    lower: PathBuf,
    upper: PathBuf,
    /// Number of mounts created; each has a separate work directory.
    made: u64,
    /// Change time of the upper directory after we last set its attributes.
    adopted: Option<(i64, i64)>,
}

impl Overlay {
    /// Prepares an overlay at an empty directory, and checks that it can be mounted.
    ///
    /// The folder contains the files that are written.
    ///
    /// # Errors
    /// [`OverlayError::Forbidden`]: not supported on this machine or in this folder;
    /// [`OverlayError::Point`]: the directory is not suitable.
    pub fn new(folder: Arc<MountFolder>, mountpoint: &Path) -> Result<Self, OverlayError> {
        let mounts = MountStack::new(check_mountpoint(mountpoint, false)?);
        let (lower, upper) = (folder.directory("lower")?, folder.directory("upper")?);
        let mut overlay = Self { folder, mounts, lower, upper, made: 0, adopted: None };
        // Test with an empty tree and a detached mount.
        drop(overlay.make()?);
        Ok(overlay)
    }

    /// The directory at which the tree must be mounted.
    pub fn lower(&self) -> &Path {
        &self.lower
    }

    /// Mounts the overlay over what is mounted at `lower` now, and replaces the previous overlay.
    ///
    /// The replacement is atomic. Files that are open stay in the previous overlay.
    ///
    /// # Errors
    /// [`OverlayError::Forbidden`]: overlayfs rejects the configuration;
    /// [`OverlayError::System`]: the overlay cannot be mounted at the directory.
    pub fn show(&mut self) -> Result<(), OverlayError> {
        let upper = self.upper.clone();
        self.adopt_root()
            .map_err(OverlayError::system("set the attributes of a folder", &upper))?;
        let mount = self.make()?;
        let failed = OverlayError::system("mount an overlay", self.mounts.mountpoint());
        self.mounts.show(&mount).map_err(failed)
    }

    fn make(&mut self) -> Result<OwnedFd, OverlayError> {
        self.made += 1;
        let work = self.folder.directory(&format!("work/{}", self.made))?;
        let open =
            |path: &Path| open_directory(path).map_err(OverlayError::system("open a folder", path));
        let (lower, upper, work) = (open(&self.lower)?, open(&self.upper)?, open(&work)?);
        let paths = [&lower, &upper, &work].map(|fd| descriptor_path(fd.as_fd()));
        let options = [
            ("source", self.folder.path().as_os_str()),
            ("lowerdir", &paths[0]),
            ("upperdir", &paths[1]),
            ("workdir", &paths[2]),
            // With these options the lower tree may differ in the next mount, and two overlays may
            // share the upper directory while files are open in the older one.
            ("redirect_dir", OsStr::new("nofollow")),
            ("index", OsStr::new("off")),
            ("metacopy", OsStr::new("off")),
            ("xino", OsStr::new("off")),
        ];
        make(KIND, &options).map_err(|MountFailure { errno, message }| match errno {
            Errno::NOSPC | Errno::DQUOT => {
                OverlayError::Full { folder: self.folder.path().to_owned() }
            }
            _ => OverlayError::Forbidden { what: WHAT, message, remedy: REMEDY },
        })
    }

    /// Copies the attributes of the tree's root to the upper directory.
    ///
    /// The upper directory provides the root of the overlay. The attributes are not copied any more
    /// once a program of the host has changed it.
    fn adopt_root(&mut self) -> io::Result<()> {
        let (lower_metadata, upper_metadata) =
            (fs::metadata(&self.lower)?, fs::metadata(&self.upper)?);
        if self
            .adopted
            .is_some_and(|adopted| adopted != (upper_metadata.ctime(), upper_metadata.ctime_nsec()))
        {
            return Ok(());
        }
        chown(&self.upper, Some(lower_metadata.uid()), Some(lower_metadata.gid()))?;
        fs::set_permissions(
            &self.upper,
            fs::Permissions::from_mode(lower_metadata.mode() & 0o7777),
        )?;
        let time =
            Timespec { tv_sec: lower_metadata.mtime(), tv_nsec: lower_metadata.mtime_nsec() };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &self.upper, &times, AtFlags::empty())?;
        let upper_metadata = fs::metadata(&self.upper)?;
        self.adopted = Some((upper_metadata.ctime(), upper_metadata.ctime_nsec()));
        Ok(())
    }

    /// Returns whether the overlay is mounted; false if someone else has unmounted it.
    pub fn is_open(&self) -> bool {
        self.mounts.is_open()
    }

    /// Unmounts the overlay, even if its files are open. The written files are removed with the
    /// folder.
    ///
    /// # Errors
    /// Something else is mounted over it.
    pub fn close(&mut self) -> Result<(), OverlayError> {
        let failed = OverlayError::system("unmount", self.mounts.mountpoint());
        self.mounts.unmount_all().map_err(failed)
    }
}
