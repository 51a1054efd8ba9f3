//! What the programs of one host write over a tree, for that host alone.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_fuse::check_point;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use rustix::io::Errno;

use crate::error::ImageError;
use crate::folder::Folder;
use crate::mounting::{Place, Refusal, by_number, directory, make};

const KIND: &str = "overlay";
const WHAT: &str = "writing over files of the client";
const REMEDY: &str = "run as root, on a kernel with overlayfs, and with a folder for what the host \
                      keeps that is on a disk of the host or a tmpfs; or take way=\"unpack\"";

/// A tree with what is written over it, at a directory.
#[derive(Debug)]
pub struct Overlay {
    folder: Arc<Folder>,
    place: Place,
    lower: PathBuf,
    upper: PathBuf,
    /// How many were made; each has a directory of its own to work in.
    made: u64,
    /// When the directory of what is written was changed last by us, and not by the host.
    adopted: Option<(i64, i64)>,
}

impl Overlay {
    /// Takes an empty directory to show it at; keeps what is written in the folder, and sees
    /// whether that can be done.
    ///
    /// # Errors
    /// [`ImageError::Forbidden`]: not on this machine, or not in this folder;
    /// [`ImageError::Point`]: not at this directory.
    pub fn new(folder: Arc<Folder>, point: &Path) -> Result<Self, ImageError> {
        let place = Place::new(check_point(point, false)?);
        let (lower, upper) = (folder.directory("lower")?, folder.directory("upper")?);
        let mut overlay = Self { folder, place, lower, upper, made: 0, adopted: None };
        // Over nothing, and nowhere in the tree.
        drop(overlay.make()?);
        Ok(overlay)
    }

    /// Where the tree is to be mounted that is shown.
    pub fn lower(&self) -> &Path {
        &self.lower
    }

    /// Shows what is mounted there now, with what was written: in the place of what was shown
    /// before, in one step. Who has a file open goes on in it.
    ///
    /// # Errors
    /// [`ImageError::Forbidden`]: overlayfs does not take it; [`ImageError::System`]: it cannot be
    /// put there.
    pub fn show(&mut self) -> Result<(), ImageError> {
        let upper = self.upper.clone();
        self.adopt_root().map_err(ImageError::system("set the attributes of a folder", &upper))?;
        let mount = self.make()?;
        let failed = ImageError::system("mount an overlay", self.place.point());
        self.place.show(&mount).map_err(failed)
    }

    fn make(&mut self) -> Result<OwnedFd, ImageError> {
        self.made += 1;
        let work = self.folder.directory(&format!("work/{}", self.made))?;
        let open = |path: &Path| directory(path).map_err(ImageError::system("open a folder", path));
        let (lower, upper, work) = (open(&self.lower)?, open(&self.upper)?, open(&work)?);
        let paths = [&lower, &upper, &work].map(|fd| by_number(fd.as_fd()));
        let options = [
            ("source", self.folder.path().as_os_str()),
            ("lowerdir", &paths[0]),
            ("upperdir", &paths[1]),
            ("workdir", &paths[2]),
            // Only without all of these the tree below may be another one the next time; and two
            // overlays share what is written while somebody has files open in the older one.
            ("redirect_dir", OsStr::new("nofollow")),
            ("index", OsStr::new("off")),
            ("metacopy", OsStr::new("off")),
            ("xino", OsStr::new("off")),
        ];
        make(KIND, &options, true).map_err(|Refusal { errno, said }| match errno {
            Errno::NOSPC | Errno::DQUOT => {
                ImageError::Full { folder: self.folder.path().to_owned() }
            }
            _ => ImageError::Forbidden { what: WHAT, said, remedy: REMEDY },
        })
    }

    /// The directory itself is that of what is written: it is as the one of the tree, until the
    /// host writes there.
    fn adopt_root(&mut self) -> io::Result<()> {
        let (told, own) = (fs::metadata(&self.lower)?, fs::metadata(&self.upper)?);
        if self.adopted.is_some_and(|adopted| adopted != (own.ctime(), own.ctime_nsec())) {
            return Ok(());
        }
        chown(&self.upper, Some(told.uid()), Some(told.gid()))?;
        fs::set_permissions(&self.upper, fs::Permissions::from_mode(told.mode() & 0o7777))?;
        let time = Timespec { tv_sec: told.mtime(), tv_nsec: told.mtime_nsec() };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &self.upper, &times, AtFlags::empty())?;
        let own = fs::metadata(&self.upper)?;
        self.adopted = Some((own.ctime(), own.ctime_nsec()));
        Ok(())
    }

    /// Whether nobody else has taken it away.
    pub fn is_open(&self) -> bool {
        self.place.is_open()
    }

    /// Takes it away, even if files of it are open; what was written goes with the folder.
    ///
    /// # Errors
    /// Something else is mounted over it.
    pub fn close(&mut self) -> Result<(), ImageError> {
        let failed = ImageError::system("unmount", self.place.point());
        self.place.clear().map_err(failed)
    }
}
