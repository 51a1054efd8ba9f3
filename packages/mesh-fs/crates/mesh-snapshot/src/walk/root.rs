//! The root directory of a snapshot, and access to the files inside it.

use crate::tree::attributes::Kind;
use crate::walk::file_stat::FileStat;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Length limit for paths passed to the kernel, slightly below `PATH_MAX`.
const PATH_LEN_MAX: usize = 4000;
/// Maximum number of attempts if a file is replaced while its metadata is read.
const STAT_ATTEMPTS_MAX: usize = 4;

/// An open directory. Paths inside are bytes without a leading slash; the root is the empty path.
#[derive(Debug)]
pub(crate) struct Root {
    directory: OwnedFd,
    path: PathBuf,
}

/// Metadata of a name, and the target if it is a symbolic link.
pub(crate) type NameStat = (FileStat, Option<Box<[u8]>>);

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self { directory, path: path.to_owned() })
    }

    /// Returns the full path, for messages.
    pub(crate) fn full(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.path.clone() } else { self.path.join(OsStr::from_bytes(path)) }
    }

    /// Opens a file for reading. May also open other kinds, but never blocks.
    pub(crate) fn file(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.reach(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    }

    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.reach(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Reads the metadata of a path; see [`stat_name`].
    pub(crate) fn stat_name(&self, path: &[u8]) -> io::Result<Option<NameStat>> {
        match self.approach(path) {
            Ok((directory, rest)) => {
                let directory = directory.as_ref().unwrap_or(&self.directory);
                stat_name(directory.as_fd(), rest)
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn reach(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let (directory, rest) = self.approach(path)?;
        let directory = directory.as_ref().unwrap_or(&self.directory);
        let rest = if rest.is_empty() { b"." } else { rest };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(directory, OsStr::from_bytes(rest), flags, Mode::empty())?)
    }

    /// Opens parent directories until the rest of the path is short enough for the kernel.
    fn approach<'a>(&self, path: &'a [u8]) -> Result<(Option<OwnedFd>, &'a [u8]), Errno> {
        let (mut directory, mut rest) = (None, path);
        while rest.len() > PATH_LEN_MAX {
            let slash = rest[..PATH_LEN_MAX].iter().rposition(|byte| *byte == b'/');
            let slash = slash.ok_or(Errno::NAMETOOLONG)?;
            let from = directory.as_ref().unwrap_or(&self.directory);
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let next = openat(from, OsStr::from_bytes(&rest[..slash]), flags, Mode::empty())?;
            (directory, rest) = (Some(next), &rest[slash + 1..]);
        }
        Ok((directory, rest))
    }
}

/// Returns whether an error means that the path does not exist any more.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::STALE, Errno::NXIO, Errno::NODEV];
    gone.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Reads the metadata of a name in a directory without following it; `None` if it does not exist.
///
/// # Errors
/// The metadata cannot be read, or the file is replaced repeatedly.
pub(crate) fn stat_name(directory: BorrowedFd<'_>, name: &[u8]) -> io::Result<Option<NameStat>> {
    let name = OsStr::from_bytes(name);
    for _ in 0..STAT_ATTEMPTS_MAX {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = match statat(directory, name, flags) {
            Ok(stat) => FileStat::new(&stat),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if stat.kind != Kind::Symlink {
            return Ok(Some((stat, None)));
        }
        match readlinkat(directory, name, Vec::new()) {
            Ok(target) if target.is_empty() => return Err(Errno::INVAL.into()),
            Ok(target) => return Ok(Some((stat, Some(target.into_bytes().into())))),
            Err(Errno::NOENT) => return Ok(None),
            // The name is not a symbolic link any more.
            Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::INVAL.into())
}
