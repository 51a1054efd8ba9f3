//! Directories accessed through descriptors, so that nothing outside them is written.
//!
//! Other users may have write permission for a directory into which a tree is written. All
//! operations here take a single name in an open directory, follow no symbolic link, and open no
//! file that they have not created.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::chown;

use mesh_chunks::is_trusted;
use mesh_snapshot::{Attributes, is_name};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, Timespec,
    Timestamps, XattrFlags,
};
use rustix::io::Errno;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

impl Directory {
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Opens the directory at a relative path beneath this one. An empty path is this directory.
    ///
    /// # Errors
    ///
    /// The directory does not exist, or the path contains a symbolic link.
    pub(crate) fn beneath(&self, path: &[u8]) -> io::Result<Self> {
        if path.is_empty() {
            return Ok(Self(self.0.try_clone()?));
        }
        if !path.split(|byte| *byte == b'/').all(is_name) {
            return Err(Errno::INVAL.into());
        }
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let name = OsStr::from_bytes(path);
        match rustix::fs::openat2(&self.0, name, DIRECTORY, Mode::empty(), resolve) {
            // Kernels before 5.6 and some sandboxes lack this system call, the path may be too long
            // for it, and it fails if directories on the path are moved during the call.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG | Errno::AGAIN) => self.walk(path),
            opened => Ok(Self(opened?)),
        }
    }

    /// Opens the directories of a path one by one.
    fn walk(&self, path: &[u8]) -> io::Result<Self> {
        let mut here = self.beneath(b"")?;
        for name in path.split(|byte| *byte == b'/') {
            here = here.child(name)?;
        }
        Ok(here)
    }

    /// Opens a subdirectory.
    pub(crate) fn child(&self, name: &[u8]) -> io::Result<Self> {
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        Ok(Self(rustix::fs::openat(&self.0, OsStr::from_bytes(name), flags, Mode::empty())?))
    }

    /// Opens the parent directory of a relative path; returns it with the last name.
    ///
    /// # Errors
    ///
    /// The directory does not exist, or the path contains a symbolic link.
    pub(crate) fn parent_of<'a>(&self, path: &'a [u8]) -> io::Result<(Self, &'a [u8])> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (above, name) = slash.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        Ok((self.beneath(above)?, name))
    }

    /// Returns the attributes of an entry, or `None` if it does not exist or is not accessible.
    pub(crate) fn stat(&self, name: &[u8]) -> Option<Stat> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statat(&self.0, OsStr::from_bytes(name), flags).ok()
    }

    /// Returns the attributes of this directory.
    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.0)?)
    }

    /// Returns the names of all entries.
    pub(crate) fn names(&self) -> io::Result<Vec<CString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
        let entries = Dir::new(listed)?.collect::<Result<Vec<_>, _>>()?;
        let names = entries.iter().map(|entry| entry.file_name());
        Ok(names
            .filter(|name| !matches!(name.to_bytes(), b"." | b".."))
            .map(CStr::to_owned)
            .collect())
    }

    /// Locks the directory while the result exists, unless another process has locked it.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub(crate) fn try_lock(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.0, c".", flags, Mode::empty())?;
        match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(opened)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a file that only this user can read, and opens it for writing.
    ///
    /// # Errors
    ///
    /// An entry with this name exists, or the system call failed.
    pub(crate) fn create_file(&self, name: &[u8]) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.0, OsStr::from_bytes(name), flags, mode)?.into())
    }

    /// Opens a regular file that belongs to this user or to root.
    ///
    /// # Errors
    ///
    /// The entry is not such a file, or the system call failed.
    pub(crate) fn trusted_file(&self, name: &[u8], flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.0, OsStr::from_bytes(name), flags, mode)?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a regular file"));
        }
        if !is_trusted(stat.st_uid) {
            return Err(io::Error::other(format!("it belongs to user {}", stat.st_uid)));
        }
        Ok(file.into())
    }

    /// Creates a directory that only this user can access.
    pub(crate) fn create_directory(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(&self.0, OsStr::from_bytes(name), Mode::RWXU)?)
    }

    pub(crate) fn create_symlink(&self, name: &[u8], target: &[u8]) -> io::Result<()> {
        let (name, target) = (OsStr::from_bytes(name), OsStr::from_bytes(target));
        Ok(rustix::fs::symlinkat(target, &self.0, name)?)
    }

    /// Creates a named pipe or a socket.
    pub(crate) fn create_special(&self, name: &[u8], kind: FileType) -> io::Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::mknodat(&self.0, OsStr::from_bytes(name), kind, mode, 0)?)
    }

    /// Creates a hard link `name` in this directory to an entry of another directory.
    pub(crate) fn link(&self, name: &[u8], other: &Self, first: &[u8]) -> io::Result<()> {
        let (name, first) = (OsStr::from_bytes(name), OsStr::from_bytes(first));
        Ok(rustix::fs::linkat(&other.0, first, &self.0, name, AtFlags::empty())?)
    }

    /// Renames an entry, and replaces an existing entry with the new name.
    pub(crate) fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let (from, to) = (OsStr::from_bytes(from), OsStr::from_bytes(to));
        Ok(rustix::fs::renameat(&self.0, from, &self.0, to)?)
    }

    pub(crate) fn remove_file(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, OsStr::from_bytes(name), AtFlags::empty())?)
    }

    pub(crate) fn remove_directory(&self, name: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, OsStr::from_bytes(name), AtFlags::REMOVEDIR)?)
    }

    /// Removes an entry with everything in it, and ignores errors.
    pub(crate) fn remove_all(&self, name: &[u8]) {
        if !self.stat(name).is_some_and(|stat| is_directory(&stat)) {
            let _ = self.remove_file(name);
            return;
        }
        if let Ok(inner) = self.child(name) {
            inner.clear();
        }
        let _ = self.remove_directory(name);
    }

    /// Removes all entries, and ignores errors.
    pub(crate) fn clear(&self) {
        // The owner needs these permissions to list and remove entries.
        let permissions = self.own_stat().map_or(0, |stat| stat.st_mode & 0o7777);
        if permissions & 0o700 != 0o700 {
            let _ = self.set_permissions(permissions | 0o700);
        }
        for name in self.names().unwrap_or_default() {
            self.remove_all(name.to_bytes());
        }
    }

    /// Opens an entry that was created with this kind, to set its attributes.
    ///
    /// # Errors
    ///
    /// Another user has replaced it by an entry of another kind or by a hard link to a file.
    pub(crate) fn created(&self, name: &[u8], kind: FileType) -> io::Result<Created> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = rustix::fs::openat(&self.0, OsStr::from_bytes(name), flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&entry)?;
        let is_same = FileType::from_raw_mode(stat.st_mode) == kind && stat.st_nlink == 1;
        if is_same { Ok(Created(entry)) } else { Err(Errno::STALE.into()) }
    }

    pub(crate) fn set_permissions(&self, permissions: u32) -> io::Result<()> {
        set_permissions(&self.0, permissions)
    }

    /// Returns a handle that sets the attributes of this directory.
    pub(crate) fn into_created(self) -> Created {
        Created(self.0)
    }
}

/// An open entry that this process has created.
#[derive(Debug)]
pub(crate) struct Created(OwnedFd);

impl From<File> for Created {
    fn from(file: File) -> Self {
        Self(file.into())
    }
}

impl Created {
    pub(crate) fn set_owner(&self, user: u32, group: u32) -> io::Result<()> {
        chown(by_number(&self.0), Some(user), Some(group))
    }

    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let name = OsStr::from_bytes(name);
        Ok(rustix::fs::setxattr(by_number(&self.0), name, value, XattrFlags::empty())?)
    }

    pub(crate) fn set_permissions(&self, permissions: u32) -> io::Result<()> {
        set_permissions(&self.0, permissions)
    }

    /// Sets the modification and access times to the modification time of an entry of a tree.
    pub(crate) fn set_times(&self, given: &Attributes) -> io::Result<()> {
        let time = Timespec { tv_sec: given.modified_s, tv_nsec: given.modified_ns.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, by_number(&self.0), &times, AtFlags::empty())?)
    }
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn set_permissions(descriptor: &OwnedFd, permissions: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(by_number(descriptor), Mode::from_raw_mode(permissions))?)
}

/// Returns a path to an open file.
///
/// Attributes of a file that was opened with `O_PATH` can only be changed through such a path. If
/// the file is a symbolic link itself, the link is not followed.
fn by_number(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;

    fn opened(path: &Path) -> Directory {
        let fd = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty());
        Directory::new(fd.expect("it can be opened"))
    }

    fn folder() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder can be made");
        fs::create_dir_all(root.path().join("root/a/b")).expect("a folder can be made");
        fs::create_dir(root.path().join("outside")).expect("a folder can be made");
        symlink("../outside", root.path().join("root/link")).expect("a link can be made");
        root
    }

    #[test]
    fn a_path_resolves_beneath_the_root_with_and_without_openat2() {
        let place = folder();
        let root = opened(&place.path().join("root"));
        let inode = fs::metadata(place.path().join("root/a/b")).expect("it is there").ino();
        for found in [root.beneath(b"a/b"), root.walk(b"a/b")] {
            let stat = found.and_then(|found| found.own_stat()).expect("it is there");
            assert_eq!(stat.st_ino, inode);
        }
    }

    #[test]
    fn no_path_resolves_outside_the_root() {
        let place = folder();
        let root = opened(&place.path().join("root"));
        for path in ["link", "a/../../outside", "..", "/", "/tmp", "a//b", "./a", "a/"] {
            root.beneath(path.as_bytes()).expect_err(path);
        }
        root.walk(b"link").expect_err("it is a link");
    }

    #[test]
    fn a_symlink_in_place_of_a_file_is_not_opened() {
        let place = folder();
        let root = opened(&place.path().join("root"));
        let outside = place.path().join("outside/file");
        fs::write(&outside, "theirs").expect("a file can be written");
        symlink("../outside/file", place.path().join("root/file")).expect("a link can be made");
        root.create_file(b"file").expect_err("it is there");
        root.trusted_file(b"file", OFlags::RDONLY).expect_err("it is a link");
        assert_eq!(fs::read(&outside).expect("it is there"), b"theirs");
    }

    #[test]
    fn opening_a_pipe_as_a_file_fails_without_blocking() {
        let place = folder();
        let root = opened(&place.path().join("root"));
        root.create_special(b"pipe", FileType::Fifo).expect("a pipe can be made");
        root.trusted_file(b"pipe", OFlags::RDONLY).expect_err("it is a pipe");
    }

    #[test]
    fn a_hard_link_is_not_accepted_as_a_created_file() {
        let place = folder();
        let root = opened(&place.path().join("root"));
        let outside = place.path().join("outside/pipe");
        opened(&place.path().join("outside"))
            .create_special(b"pipe", FileType::Fifo)
            .expect("a pipe can be made");
        fs::hard_link(&outside, place.path().join("root/pipe")).expect("a link can be made");
        root.created(b"pipe", FileType::Fifo).expect_err("it has two names");
        root.created(b"link", FileType::Fifo).expect_err("it is a link");
    }
}
