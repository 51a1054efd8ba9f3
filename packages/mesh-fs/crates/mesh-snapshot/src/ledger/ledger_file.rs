//! Location of the ledger of a directory: a file in a folder shared with other ledgers.

use crate::ledger::Ledger;
use crate::options::Options;
use mesh_chunks::{ChunkId, StoreError, own_folder};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, flock, fstat, openat, renameat, statat, unlinkat, utimensat,
};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Limits on the number of ledgers in a folder and on their total length in bytes. The least
/// recently used ones are removed first.
const LEDGERS_MAX: usize = 256;
const BYTES_MAX: u64 = 512 << 20;
/// Maximum length of a ledger in bytes.
const LEDGER_LEN_MAX: u64 = 256 << 20;
const SUFFIX: &str = ".ledger";
/// Ending of a temporary file, which its writer keeps locked.
const TEMPORARY_SUFFIX: &str = ".unfinished";

/// File that holds the ledger of one directory.
///
/// Any number of programs may use the same file at the same time. Each write replaces the whole
/// file, and the last one wins.
#[derive(Debug)]
pub struct LedgerFile {
    folder: OwnedFd,
    name: String,
}

impl LedgerFile {
    /// Locates the ledger for the directory `root` with these options. Creates the folder if
    /// needed.
    ///
    /// # Errors
    /// [`StoreError::Foreign`] and [`StoreError::Exposed`]: other users could write to the folder;
    /// [`StoreError::System`]: the folder cannot be created or read.
    pub fn open(folder: &Path, root: &Path, options: &Options) -> Result<Self, StoreError> {
        Ok(Self { folder: own_folder(folder)?, name: name_of(root, options) })
    }

    /// Reads the ledger. Returns `None` if it is missing, damaged or of another version.
    pub fn load(&self) -> Option<Ledger> {
        let name = self.file_name();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, &name, flags, Mode::empty()).ok()?;
        let stat = fstat(&file).ok()?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw()
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let length = u64::try_from(stat.st_size).ok()?;
        if !is_ours || length > LEDGER_LEN_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(usize::try_from(length).ok()?);
        File::from(file).take(LEDGER_LEN_MAX).read_to_end(&mut bytes).ok()?;
        let ledger = Ledger::decode(&bytes).ok()?;
        // If the time cannot be updated, the ledger is at worst removed too early.
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        };
        let _ = utimensat(&self.folder, &name, &times, AtFlags::SYMLINK_NOFOLLOW);
        Some(ledger)
    }

    /// Replaces the ledger with the bytes of [`Snapshot::ledger`](crate::Snapshot::ledger).
    ///
    /// A ledger that exceeds the maximum length is not written.
    ///
    /// # Errors
    /// The file cannot be written. The previous ledger is unchanged.
    pub fn save(&self, ledger: &[u8]) -> io::Result<()> {
        if ledger.len() as u64 > LEDGER_LEN_MAX {
            return Ok(());
        }
        let temporary = format!("{}.{:016x}{TEMPORARY_SUFFIX}", self.name, random()?);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.folder, &temporary, flags, Mode::RUSR | Mode::WUSR)?;
        let written = self.write(file, &temporary, ledger);
        if written.is_err() {
            let _ = unlinkat(&self.folder, &temporary, AtFlags::empty());
        }
        self.remove_excess();
        written
    }

    fn write(&self, file: OwnedFd, temporary: &str, ledger: &[u8]) -> io::Result<()> {
        // If the file system does not support locks, other processes may remove the file as stale.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let mut file = File::from(file);
        // Not flushed to the disk: the checksum detects a file that a power failure leaves
        // incomplete.
        file.write_all(ledger)?;
        Ok(renameat(&self.folder, temporary, &self.folder, self.file_name())?)
    }

    fn file_name(&self) -> String {
        format!("{}{SUFFIX}", self.name)
    }

    /// Removes ledgers beyond the limits, and temporary files of writers that were killed.
    ///
    /// Files that cannot be removed are kept until the next call.
    fn remove_excess(&self) {
        let Ok(entries) = Dir::read_from(&self.folder) else { return };
        let mut ledgers = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name.to_bytes().ends_with(TEMPORARY_SUFFIX.as_bytes()) {
                let _ = self.remove_stale(name);
            } else if name.to_bytes().ends_with(SUFFIX.as_bytes())
                && let Ok(stat) = statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)
            {
                let used = (stat.st_mtime, stat.st_mtime_nsec);
                ledgers.push((used, name.to_owned(), u64::try_from(stat.st_size).unwrap_or(0)));
            }
        }
        // Most recently used first.
        ledgers.sort_unstable_by(|one, other| other.cmp(one));
        let mut bytes = 0_u64;
        for (nth, (_, name, length)) in ledgers.iter().enumerate() {
            bytes = bytes.saturating_add(*length);
            if nth >= LEDGERS_MAX || bytes > BYTES_MAX {
                let _ = unlinkat(&self.folder, name.as_c_str(), AtFlags::empty());
            }
        }
    }

    /// Removes a temporary file that no process is writing.
    fn remove_stale(&self, name: &std::ffi::CStr) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&self.folder, name, flags, Mode::empty())?;
        flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
        Ok(unlinkat(&self.folder, name, AtFlags::empty())?)
    }
}

/// Returns the file name of a ledger without its ending.
///
/// It differs for each directory and each combination of options that affect the snapshot.
fn name_of(root: &Path, options: &Options) -> String {
    let Options { ignore, ignore_files, cross_file_systems, skip_unreadable, threads: _ } = options;
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let mut text = Vec::new();
    let mut add = |part: &[u8]| {
        text.extend((part.len() as u64).to_le_bytes());
        text.extend_from_slice(part);
    };
    add(root.as_os_str().as_bytes());
    for patterns in [ignore, ignore_files] {
        add(&(patterns.len() as u64).to_le_bytes());
        patterns.iter().for_each(|pattern| add(pattern.as_bytes()));
    }
    add(&[u8::from(*cross_file_systems), u8::from(*skip_unreadable)]);
    ChunkId::of(&text).to_string()[..32].to_owned()
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}
