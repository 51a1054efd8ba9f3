//! Storage of credentials in files that only their owner can use.
//!
//! A file is written under a temporary name and then renamed, so a reader sees either the old or
//! the new file, never a part. A file is loaded only if no other user can access it, because a key
//! that others can read is not secret.

use crate::authority::Authority;
use crate::encoded::TEXT_LEN_MAX;
use crate::error::TrustError;
use crate::identity::Identity;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::process::geteuid;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The file of an [`Identity`] in its folder.
pub const IDENTITY_FILE: &str = "identity.pem";
/// The file of an [`Authority`] in its folder.
pub const AUTHORITY_FILE: &str = "authority.pem";

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of group and others, and the subset that allows changes.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
/// The sticky bit: users cannot remove the files of others in such a folder.
const STICKY: u32 = 0o1000;
const ROOT: u32 = 0;

impl Identity {
    /// Saves the identity to a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// [`TrustError::FolderOpenToOthers`] or [`TrustError::OtherOwner`] if the folder is not
    /// private; [`TrustError::Io`] if the operating system refuses.
    pub fn save(&self, folder: &Path) -> Result<(), TrustError> {
        write(folder, IDENTITY_FILE, &self.to_pem())
    }

    /// Loads the identity from a folder.
    ///
    /// # Errors
    /// [`TrustError::OpenToOthers`], [`TrustError::FolderOpenToOthers`] or
    /// [`TrustError::OtherOwner`] if another user may use or change the file;
    /// [`TrustError::Malformed`] if it does not contain an identity; [`TrustError::Io`] if the
    /// operating system refuses.
    pub fn load(folder: &Path) -> Result<Self, TrustError> {
        let (path, text) = read(folder, IDENTITY_FILE)?;
        Self::parse(&text).map_err(|why| TrustError::malformed(path.display(), why))
    }
}

impl Authority {
    /// Saves the authority to a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// See [`Identity::save`].
    pub fn save(&self, folder: &Path) -> Result<(), TrustError> {
        write(folder, AUTHORITY_FILE, &self.to_pem())
    }

    /// Loads the authority from a folder. Returns `None` if the folder has none.
    ///
    /// # Errors
    /// See [`Identity::load`].
    pub fn load(folder: &Path) -> Result<Option<Self>, TrustError> {
        match read(folder, AUTHORITY_FILE) {
            Ok((path, text)) => Self::parse(&text)
                .map(Some)
                .map_err(|why| TrustError::malformed(path.display(), why)),
            Err(TrustError::Io { kind: io::ErrorKind::NotFound, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn read(folder: &Path, name: &str) -> Result<(PathBuf, Zeroizing<String>), TrustError> {
    let path = folder.join(name);
    let failed = |error: io::Error| io_error(&path, "read", &error);
    // The file is opened before it is checked, so that the file that is read was checked. It is
    // opened non-blocking, because opening a pipe instead of a file would wait forever.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("it is a small flag");
    let file = OpenOptions::new().read(true).custom_flags(nonblock).open(&path).map_err(failed)?;
    check_folder(folder)?;
    let metadata = file.metadata().map_err(failed)?;
    check_owner(&path, &metadata)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(TrustError::OpenToOthers { path, mode });
    }
    if !metadata.is_file() {
        return Err(TrustError::malformed(path.display(), "it is not a file"));
    }
    let mut text = Zeroizing::new(String::with_capacity(TEXT_LEN_MAX));
    match file.take(TEXT_LEN_MAX as u64 + 1).read_to_string(&mut text) {
        Ok(_) => Ok((path, text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(TrustError::malformed(path.display(), "it is not text"))
        }
        Err(error) => Err(failed(error)),
    }
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), TrustError> {
    let made = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder);
    made.map_err(|error| io_error(folder, "made", &error))?;
    check_folder(folder)?;
    let path = folder.join(name);
    let draft = folder.join(draft_name(name)?);
    let written = write_draft(&draft, text).and_then(|()| fs::rename(&draft, &path));
    if let Err(error) = written {
        // The draft may never have been created; it matters only that no partial key is left
        // behind.
        let _ = fs::remove_file(&draft);
        return Err(io_error(&path, "written", &error));
    }
    // Makes the new directory entry durable.
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| io_error(folder, "written", &error))
}

fn write_draft(draft: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(draft)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A temporary file name that no other writer uses, in this process or another.
pub(crate) fn draft_name(name: &str) -> Result<String, TrustError> {
    let mut number = [0; 8];
    let filled = SystemRandom::new().fill(&mut number);
    filled.map_err(|_| TrustError::crypto("no randomness"))?;
    Ok(format!(".{name}.{:016x}", u64::from_ne_bytes(number)))
}

/// Refuses a folder in which another user could replace our file.
fn check_folder(folder: &Path) -> Result<(), TrustError> {
    let metadata = fs::metadata(folder).map_err(|error| io_error(folder, "read", &error))?;
    check_owner(folder, &metadata)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(TrustError::FolderOpenToOthers { path: folder.to_owned(), mode });
    }
    Ok(())
}

/// Refuses a file of another user, who could change it at any time. Root could do so anyway.
fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), TrustError> {
    let (owner, us) = (metadata.uid(), geteuid().as_raw());
    if owner == us || owner == ROOT {
        return Ok(());
    }
    Err(TrustError::OtherOwner { path: path.to_owned(), owner, us })
}

fn io_error(path: &Path, verb: &'static str, error: &io::Error) -> TrustError {
    TrustError::Io { path: path.to_owned(), verb, kind: error.kind(), why: error.to_string() }
}
