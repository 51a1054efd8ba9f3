//! The folder of a store. No other module of the store opens, lists or removes its files.

use crate::error::StoreError;
use crate::trusted_path::open_trusted;
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Lock file held by a process that evicts packs.
///
/// It prevents two processes from both freeing the same amount of space.
const REMOVAL_LOCK: &str = "removal.lock";

/// Stem of the names of a pack's two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackName(u64);

/// One of the two files of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The concatenated chunks. This file is created first and removed last.
    Chunks,
    /// The records that locate the chunks.
    Index,
}

/// Access mode with which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

/// A folder that belongs to this user and to which no other user can write.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Used for all operations, so they stay in the same folder even if the path changes.
    fd: OwnedFd,
}

impl PackName {
    /// Returns a random 64-bit name, which no other pack has.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self(u64::from_le_bytes(bytes)))
    }

    fn file(self, part: Part) -> String {
        let Self(number) = self;
        match part {
            Part::Chunks => format!("{number:016x}.pack"),
            Part::Index => format!("{number:016x}.index"),
        }
    }

    fn parse(file: &[u8]) -> Option<(Self, Part)> {
        let file = std::str::from_utf8(file).ok()?;
        let name = Self(u64::from_str_radix(file.split_once('.')?.0, 16).ok()?);
        // Reject names that `file` would not produce, such as ones with fewer digits.
        [Part::Chunks, Part::Index]
            .into_iter()
            .find(|part| name.file(*part) == file)
            .map(|part| (name, part))
    }
}

impl Folder {
    /// Opens the folder, or creates it.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: path.to_owned(), fd: own_folder(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Converts a system error to an error of the store.
    pub(crate) fn failed(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::System { doing, folder: self.path.clone(), source }
    }

    /// Returns the time at which files were last added or removed: seconds and nanoseconds.
    pub(crate) fn changed_at(&self) -> io::Result<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok(modified_at(&stat))
    }

    /// Lists the files of all packs. Files that are created or removed during the call may be
    /// missing or included.
    pub(crate) fn list(&self) -> io::Result<Vec<(PackName, Part)>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            found.extend(PackName::parse(entry?.file_name().to_bytes()));
        }
        Ok(found)
    }

    /// Returns the metadata of a file, if the file exists.
    pub(crate) fn stat(&self, name: PackName, part: Part) -> io::Result<Option<Stat>> {
        there(rustix::fs::statat(&self.fd, name.file(part), AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Opens a file, if it exists.
    pub(crate) fn file(
        &self,
        name: PackName,
        part: Part,
        purpose: Purpose,
    ) -> io::Result<Option<OwnedFd>> {
        let access = match purpose {
            Purpose::Read => OFlags::RDONLY,
            Purpose::Write => OFlags::RDWR,
        };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        there(rustix::fs::openat(&self.fd, name.file(part), flags, Mode::empty()))
    }

    /// Creates a file, which must not exist yet.
    pub(crate) fn create(&self, name: PackName, part: Part) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.fd, name.file(part), flags, mode)?)
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: PackName, part: Part) -> io::Result<()> {
        there(rustix::fs::unlinkat(&self.fd, name.file(part), AtFlags::empty())).map(|_| ())
    }

    /// Removes a pack. The caller holds the lock of the pack.
    pub(crate) fn remove_pack(&self, name: PackName) -> io::Result<()> {
        // Remove the index first: a chunk file without an index marks an interrupted removal.
        self.remove(name, Part::Index)?;
        self.remove(name, Part::Chunks)
    }

    /// Records that a pack was used just now, in the modification time of its index. Returns
    /// whether the pack exists.
    pub(crate) fn touch(&self, name: PackName) -> io::Result<bool> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let touched = rustix::fs::utimensat(&self.fd, name.file(Part::Index), &times, flags);
        there(touched).map(|touched| touched.is_some())
    }

    /// Acquires the lock for evicting packs, which is held until the file is closed. Returns `None`
    /// if another process holds it.
    pub(crate) fn lock_removal(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.fd, REMOVAL_LOCK, flags, mode)?;
        Ok(try_lock(&file)?.then_some(file))
    }
}

/// Opens a folder that belongs to this user and to which no other user can write, or creates it.
///
/// # Errors
/// [`StoreError::Foreign`] and [`StoreError::Exposed`]: other users could write to the folder;
/// [`StoreError::System`]: the folder cannot be created or read.
pub fn own_folder(path: &Path) -> Result<OwnedFd, StoreError> {
    let failed = |doing| {
        move |source: io::Error| StoreError::System { doing, folder: path.to_owned(), source }
    };
    let opened = open_trusted(path, Mode::RWXU).map_err(failed("open a folder"))?;
    // The contents of a directory cannot be listed through an `O_PATH` descriptor.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(&opened, ".", flags, Mode::empty()).map_err(io::Error::from);
    let fd = fd.map_err(failed("open a folder"))?;
    let stat = rustix::fs::fstat(&fd).map_err(io::Error::from);
    let stat = stat.map_err(failed("look at a folder"))?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(StoreError::Foreign { folder: path.to_owned(), owner: stat.st_uid, user });
    }
    if stat.st_mode & 0o022 != 0 {
        let mode = stat.st_mode & 0o7777;
        return Err(StoreError::Exposed { folder: path.to_owned(), mode });
    }
    Ok(fd)
}

/// Locks a file until it is closed. Returns false if another open file description holds the lock.
pub(crate) fn try_lock(file: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(other) => Err(other.into()),
    }
}

/// Locks the chunk file of a pack, unless it is locked already or the pack has been removed.
pub(crate) fn try_lock_pack(file: &OwnedFd) -> io::Result<bool> {
    // A pack is removed only by a process that holds its lock, so a locked pack that still has a
    // link cannot be removed by others.
    Ok(try_lock(file)? && rustix::fs::fstat(file)?.st_nlink > 0)
}

/// Returns the modification time of a file: seconds and nanoseconds.
pub(crate) fn modified_at(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// Returns the length of a file in bytes.
pub(crate) fn length_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn there<T>(result: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NOENT | Errno::STALE) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pack_file_names_are_parsed() {
        let name = PackName(0x1f);
        for part in [Part::Chunks, Part::Index] {
            assert_eq!(PackName::parse(name.file(part).as_bytes()), Some((name, part)));
        }
        for other in ["removal.lock", "1f.pack", "000000000000001F.pack", "000000000000001f", "."] {
            assert_eq!(PackName::parse(other.as_bytes()), None, "{other}");
        }
    }
}
