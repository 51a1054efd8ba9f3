//! The folder of a store: the only place that opens, lists and removes files.

use crate::error::StoreError;
use crate::trusted_path::open_trusted;
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Held by whoever removes packs, so that two processes do not both make the same room.
const REMOVAL_LOCK: &str = "removal.lock";

/// What a pack's two files are called, but for their ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PackName(u64);

/// One of a pack's two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The chunks, one behind the other. It is made first and removed last.
    Chunks,
    /// The records of them.
    Index,
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    Write,
}

/// A folder of the user's own, that nobody else can write to.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// All goes by it, so that it stays the same folder whatever becomes of the path.
    fd: OwnedFd,
}

impl PackName {
    /// A name that no pack has or had.
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
        // Written again, it is the same only if it was one of ours.
        [Part::Chunks, Part::Index]
            .into_iter()
            .find(|part| name.file(*part) == file)
            .map(|part| (name, part))
    }
}

impl Folder {
    /// Opens the folder, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self { path: path.to_owned(), fd: own_folder(path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An error of the system as one of the store.
    pub(crate) fn failed(&self, doing: &'static str, source: io::Error) -> StoreError {
        StoreError::System { doing, folder: self.path.clone(), source }
    }

    /// When files were last added or removed.
    pub(crate) fn changed_at(&self) -> io::Result<(i64, i64)> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Ok(modified_at(&stat))
    }

    /// All files of packs. One that is made or removed meanwhile may be among them or not.
    pub(crate) fn list(&self) -> io::Result<Vec<(PackName, Part)>> {
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            found.extend(PackName::parse(entry?.file_name().to_bytes()));
        }
        Ok(found)
    }

    /// What the system says of a file, if it is there.
    pub(crate) fn stat(&self, name: PackName, part: Part) -> io::Result<Option<Stat>> {
        there(rustix::fs::statat(&self.fd, name.file(part), AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Opens a file, if it is there.
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

    /// Makes a file, which must not be there.
    pub(crate) fn create(&self, name: PackName, part: Part) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::openat(&self.fd, name.file(part), flags, mode)?)
    }

    /// Removes one file, if it is there.
    pub(crate) fn remove(&self, name: PackName, part: Part) -> io::Result<()> {
        there(rustix::fs::unlinkat(&self.fd, name.file(part), AtFlags::empty())).map(|_| ())
    }

    /// Removes a pack. Whoever does so holds its lock.
    pub(crate) fn remove_pack(&self, name: PackName) -> io::Result<()> {
        // The index first: what is left of a removal that was broken off is seen by its missing.
        self.remove(name, Part::Index)?;
        self.remove(name, Part::Chunks)
    }

    /// Says that a pack was used just now, by its index; tells whether it is there.
    pub(crate) fn touch(&self, name: PackName) -> io::Result<bool> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let touched = rustix::fs::utimensat(&self.fd, name.file(Part::Index), &times, flags);
        there(touched).map(|touched| touched.is_some())
    }

    /// Becomes the one that removes packs, until the file is closed; none if somebody else does.
    pub(crate) fn lock_removal(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = rustix::fs::openat(&self.fd, REMOVAL_LOCK, flags, mode)?;
        Ok(try_lock(&file)?.then_some(file))
    }
}

/// Opens a folder of the user's own that nobody else can write to, or makes it.
///
/// # Errors
/// [`StoreError::Foreign`] and [`StoreError::Exposed`]: other users could write there;
/// [`StoreError::System`]: the folder cannot be made or read.
pub fn own_folder(path: &Path) -> Result<OwnedFd, StoreError> {
    let failed = |doing| {
        move |source: io::Error| StoreError::System { doing, folder: path.to_owned(), source }
    };
    let opened = open_trusted(path, Mode::RWXU).map_err(failed("open a folder"))?;
    // With `O_PATH` alone, nothing in it can be listed.
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

/// Locks a file for this process, until the file is closed; false if another one has it.
pub(crate) fn try_lock(file: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(other) => Err(other.into()),
    }
}

/// Locks the chunks of a pack, unless somebody else has them or they were removed meanwhile.
pub(crate) fn try_lock_pack(file: &OwnedFd) -> io::Result<bool> {
    // Packs are removed by whoever has their lock, so that with it they stay.
    Ok(try_lock(file)? && rustix::fs::fstat(file)?.st_nlink > 0)
}

/// When a file was last changed: seconds, and nanoseconds.
pub(crate) fn modified_at(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0))
}

/// How long a file is.
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
    fn only_files_of_packs_have_a_name() {
        let name = PackName(0x1f);
        for part in [Part::Chunks, Part::Index] {
            assert_eq!(PackName::parse(name.file(part).as_bytes()), Some((name, part)));
        }
        for other in ["removal.lock", "1f.pack", "000000000000001F.pack", "000000000000001f", "."] {
            assert_eq!(PackName::parse(other.as_bytes()), None, "{other}");
        }
    }
}
