//! The authority of one user on one machine, shared by all programs of that user.
//!
//! The authority is stored in a folder that only the user can enter, so a certificate that it
//! signed proves that its holder runs as that user. Programs create it on first use and renew it
//! before it expires. Each generation is a separate file, published by a hard link: if several
//! programs create the same generation concurrently, one succeeds and the others load its result.
//! No lock is needed.

use crate::authority::{Authority, random_job};
use crate::encoded::TEXT_LEN_MAX;
use crate::error::TrustError;
use crate::folder::draft_name;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, linkat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustls_pki_types::UnixTime;
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zeroize::Zeroizing;

/// The lifetime of a local authority. It is renewed after two thirds, so the certificates of a
/// program are valid for at least four months after the program has loaded it.
pub const LOCAL_VALID_FOR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Each attempt fails only if another program has published a generation in the meantime.
const ATTEMPTS_MAX: usize = 16;
const FOLDER_MODE: u32 = 0o700;
/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
const PERMISSION_BITS: u32 = 0o7777;

impl Authority {
    /// Loads the authority of the current user from a private folder.
    ///
    /// Creates the folder and the authority if they do not exist, and replaces an authority that is
    /// due for renewal or has expired.
    ///
    /// # Errors
    /// [`TrustError::FolderOpenToOthers`], [`TrustError::OpenToOthers`] or
    /// [`TrustError::OtherOwner`] if another user could use or change the files; [`TrustError::Io`]
    /// if the operating system refuses, or if the newest file does not contain an authority.
    pub fn local(folder: &Path, now: UnixTime) -> Result<Self, TrustError> {
        let folder = PrivateFolder::open(folder)?;
        for _ in 0..ATTEMPTS_MAX {
            let newest = folder.newest_generation()?;
            let current = match newest {
                None => None,
                Some(generation) => match folder.read(&file_name(generation))? {
                    None => continue, // Renewed and removed since the folder was listed.
                    some => some,
                },
            };
            let next = match current {
                Some(current) if current.is_fresh(now) => return Ok(current),
                Some(current) => current.renew(LOCAL_VALID_FOR, now)?,
                None => Self::create(random_job()?, LOCAL_VALID_FOR, now)?,
            };
            let generation = newest.map_or(1, |newest| newest + 1);
            if folder.publish(&file_name(generation), &next.to_pem())? {
                folder.remove_before(generation)?;
                return Ok(next);
            }
        }
        let why = "other programs keep replacing the authority";
        Err(io_error(&folder.path, "read", &io::Error::other(why)))
    }

    /// Whether this authority is valid and not due for renewal.
    fn is_fresh(&self, now: UnixTime) -> bool {
        self.check(now).is_ok() && now < self.renew_at()
    }
}

/// A folder that only the current user can enter, opened once: all files are opened relative to the
/// descriptor, so the folder that was checked is the folder that is used.
struct PrivateFolder {
    path: PathBuf,
    fd: OwnedFd,
}

impl PrivateFolder {
    /// Opens the folder, and creates it if it does not exist. Symbolic links are refused.
    fn open(path: &Path) -> Result<Self, TrustError> {
        let failed = |error: Errno| io_error(path, "opened", &error.into());
        let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error(path, "made", &error));
            }
            // If the path is not a folder, the next call reports that.
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::LOOP | Errno::NOTDIR) => {
                let why = io::Error::new(
                    io::ErrorKind::NotADirectory,
                    "it is a symbolic link or not a folder, remove it",
                );
                return Err(io_error(path, "opened", &why));
            }
            opened => opened.map_err(failed)?,
        };
        let mode = check_owner(path, &fstat(&fd).map_err(failed)?)?;
        if mode & OTHERS != 0 {
            return Err(TrustError::FolderOpenToOthers { path: path.to_owned(), mode });
        }
        Ok(Self { path: path.to_owned(), fd })
    }

    /// The newest generation that has a file.
    fn newest_generation(&self) -> Result<Option<u64>, TrustError> {
        Ok(self.generations()?.into_iter().max())
    }

    fn generations(&self) -> Result<Vec<u64>, TrustError> {
        let failed = |error: Errno| io_error(&self.path, "read", &error.into());
        let mut found = Vec::new();
        for entry in Dir::read_from(&self.fd).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            found.extend(entry.file_name().to_str().ok().and_then(generation_of));
        }
        Ok(found)
    }

    /// Reads an authority; `None` if there is no such file.
    fn read(&self, name: &str) -> Result<Option<Authority>, TrustError> {
        let path = self.path.join(name);
        // Non-blocking: opening a pipe would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match openat(&self.fd, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.map_err(|error| io_error(&path, "read", &error.into()))?,
        };
        let stat = fstat(&fd).map_err(|error| io_error(&path, "read", &error.into()))?;
        let mode = check_owner(&path, &stat)?;
        if mode & OTHERS != 0 {
            return Err(TrustError::OpenToOthers { path, mode });
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid(&path, "it is not a regular file"));
        }
        let mut text = Zeroizing::new(String::with_capacity(TEXT_LEN_MAX));
        match File::from(fd).take(TEXT_LEN_MAX as u64 + 1).read_to_string(&mut text) {
            Ok(_) => Authority::parse(&text).map(Some).map_err(|why| invalid(&path, &why)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(invalid(&path, "it is not text"))
            }
            Err(error) => Err(io_error(&path, "read", &error)),
        }
    }

    /// Writes a new file, complete or not at all; returns false if a file of that name exists.
    fn publish(&self, name: &str, text: &str) -> Result<bool, TrustError> {
        let path = self.path.join(name);
        let failed = |error: io::Error| io_error(&path, "written", &error);
        let draft = draft_name(name)?;
        let written = self.write_draft(&draft, text).and_then(|()| {
            match linkat(&self.fd, draft.as_str(), &self.fd, name, AtFlags::empty()) {
                Err(Errno::EXIST) => Ok(false),
                linked => linked.map(|()| true).map_err(io::Error::from),
            }
        });
        // Removed in both cases, so that no other copy of the key is left behind.
        let removed = unlinkat(&self.fd, draft.as_str(), AtFlags::empty());
        let is_ours = written.map_err(failed)?;
        removed.map_err(|error| failed(error.into()))?;
        rustix::fs::fsync(&self.fd).map_err(|error| failed(error.into()))?;
        Ok(is_ours)
    }

    fn write_draft(&self, draft: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = openat(&self.fd, draft, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Removes the files of earlier generations.
    fn remove_before(&self, generation: u64) -> Result<(), TrustError> {
        for old in self.generations()?.into_iter().filter(|old| *old < generation) {
            match unlinkat(&self.fd, file_name(old), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(io_error(&self.path, "changed", &error.into())),
            }
        }
        Ok(())
    }
}

fn file_name(generation: u64) -> String {
    format!("authority-{generation}.pem")
}

/// The inverse of [`file_name`].
fn generation_of(name: &str) -> Option<u64> {
    let generation = name.strip_prefix("authority-")?.strip_suffix(".pem")?.parse().ok()?;
    (file_name(generation) == name).then_some(generation)
}

/// Refuses a file or folder of another user, root included; returns the permission bits.
fn check_owner(path: &Path, stat: &Stat) -> Result<u32, TrustError> {
    let (owner, us) = (stat.st_uid, geteuid().as_raw());
    if owner != us {
        return Err(TrustError::OtherOwner { path: path.to_owned(), owner, us });
    }
    Ok(stat.st_mode & PERMISSION_BITS)
}

fn invalid(path: &Path, why: &str) -> TrustError {
    let why = format!("{why}: remove it, and a new authority is created");
    io_error(path, "read", &io::Error::new(io::ErrorKind::InvalidData, why))
}

fn io_error(path: &Path, verb: &'static str, error: &io::Error) -> TrustError {
    TrustError::Io { path: path.to_owned(), verb, kind: error.kind(), why: error.to_string() }
}
