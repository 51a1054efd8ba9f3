//! A folder with the files of one mount, which is always removed in the end.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};

use mesh_chunks::own_folder;
use mesh_fuse::Guardian;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::OverlayError;

/// Directory of these folders in the host's cache folder.
const FOLDERS: &str = "mounts";
/// Suffix of the name of a folder's lock file.
const LOCK: &str = ".lock";
/// Maximum length of the path of a folder in bytes. The kernel limits the source of a mount, which
/// is the folder, to 255 bytes.
const PATH_LEN_MAX: usize = 220;

/// Shell script that cleans up after this process has died; `$1` is the folder.
///
/// It unmounts everything whose source is the folder or that is mounted inside it. The script reads
/// the mount table again after each unmount, because the table has changed.
const CLEANUP_SCRIPT: &str = r#"
trap '' HUP INT QUIT TERM PIPE TSTP TTIN TTOU
cd /
read -r word
[ "$word" = closed ] && exit 0
plain() {
    plain=$(printf "$(printf '%s' "$1" | sed 's/%/%%/g')x")
    plain=${plain%x}
}
is_in() {
    case "$2" in "$1" | "$1"/*) return 0 ;; esac
    return 1
}
is_covered() {
    while read -r _ over _ _ at _; do
        [ "$over" = "$1" ] && [ "$at" = "$2" ] && return 0
    done < /proc/self/mountinfo
    return 1
}
unmount_one() {
    while read -r id _ _ _ point rest; do
        source=${rest##* - }
        source=${source#* }
        plain "${source%% *}"
        is_in "$1" "$plain" || { plain "$point"; is_in "$1" "$plain"; } || continue
        is_covered "$id" "$point" && continue
        plain "$point"
        umount -l "$plain" && return 0
    done < /proc/self/mountinfo
    return 1
}
while unmount_one "$1"; do :; done
rm -rf -- "$1"
rm -f -- "$1.lock"
"#;

/// A dedicated folder for a mount. It is removed by `close`, on drop, or when this process dies.
#[derive(Debug)]
pub struct MountFolder {
    path: PathBuf,
    /// Locked as long as the folder is in use.
    lock: File,
    guardian: Mutex<Option<Guardian>>,
    /// Process that created the folder.
    owner: u32,
}

impl MountFolder {
    /// Creates a folder in the host's cache folder `cache`.
    ///
    /// It also removes folders whose owners and guardians have died.
    ///
    /// # Errors
    /// [`OverlayError::Full`] and [`OverlayError::System`]: the folder cannot be created.
    pub fn make(cache: &Path) -> Result<Self, OverlayError> {
        let folders = cache.join(FOLDERS);
        own_folder(&folders)?;
        let folders =
            folders.canonicalize().map_err(OverlayError::system("find a folder", &folders))?;
        remove_unlocked(&folders);
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())
            .map_err(OverlayError::system("generate random numbers", &folders))?;
        let path = folders.join(format!("{:016x}", u64::from_ne_bytes(random)));
        if path.as_os_str().len() > PATH_LEN_MAX {
            return Err(OverlayError::Forbidden {
                what: "mounting from a folder with such a long path",
                message: format!("{} has more than {PATH_LEN_MAX} bytes", path.display()),
                remedy: "use another folder for the host's cache",
            });
        }
        let guardian = Guardian::start(CLEANUP_SCRIPT, &[path.as_os_str()])?;
        let lock = lock_new(&path).map_err(OverlayError::system("lock a folder", &path))?;
        let guardian = Mutex::new(Some(guardian));
        let folder = Self { path, lock, guardian, owner: process::id() };
        let made = DirBuilder::new().mode(0o700).create(&folder.path);
        made.map_err(OverlayError::system("make a folder", &folder.path))?;
        Ok(folder)
    }

    /// Absolute path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a directory in it.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, OverlayError> {
        let path = self.path.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map(|()| path.clone()).map_err(OverlayError::system("make a folder", &path))
    }

    /// Removes the folder with everything in it. Mounts from it must be unmounted already.
    pub fn close(&self) {
        if self.owner != process::id() {
            return;
        }
        let guardian = self.guardian.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(guardian) = guardian else { return };
        match remove(&self.path, &self.lock) {
            Ok(()) => guardian.dismiss(),
            // On drop, the guardian cleans up by running the script.
            Err(_) => drop(guardian),
        }
    }
}

impl Drop for MountFolder {
    fn drop(&mut self) {
        if self.owner == process::id() {
            self.close();
        } else {
            // The guardian belongs to the process that created the folder.
            std::mem::forget(self.guardian.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend(LOCK.as_bytes());
    OsString::from_vec(name).into()
}

/// Creates and locks the lock file of a folder that does not exist yet.
fn lock_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    loop {
        let lock = options.open(lock_path(path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        // Another process may have removed the lock file as stale before it was locked.
        if lock.metadata()?.nlink() > 0 {
            return Ok(lock);
        }
    }
}

/// Removes a folder, and then its lock file, which this process has locked.
fn remove(path: &Path, _held: &File) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::NOENT) => Err(error),
        _ => fs::remove_file(lock_path(path)),
    }
}

/// Unmounts and removes folders that killed processes of this user have left in the host's cache
/// folder.
///
/// This is only necessary if a process was killed together with its guardian.
pub fn remove_left(cache: &Path) {
    let folders = cache.join(FOLDERS);
    if folders.is_dir()
        && own_folder(&folders).is_ok()
        && let Ok(folders) = folders.canonicalize()
    {
        remove_unlocked(&folders);
    }
}

/// Removes folders that are not locked, and ignores errors.
fn remove_unlocked(folders: &Path) {
    for entry in fs::read_dir(folders).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.as_bytes().strip_suffix(LOCK.as_bytes()) else { continue };
        let path = folders.join(OsString::from_vec(name.to_vec()));
        let Ok(lock) = File::open(entry.path()) else { continue };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // On drop, the guardian runs the script, which unmounts and removes the folder.
            drop(Guardian::start(CLEANUP_SCRIPT, &[path.as_os_str()]));
            // If something in the folder is still mounted, the folder is kept.
            let _ = remove(&path, &lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_a_folder_removes_it_and_its_contents() {
        let cache = tempfile::tempdir().expect("a folder can be made");
        let folder = MountFolder::make(cache.path()).expect("a folder can be made");
        let inside = folder.directory("a/b").expect("a folder can be made");
        fs::write(inside.join("file"), "x").expect("a file can be written");
        folder.close();
        let left = fs::read_dir(cache.path().join(FOLDERS)).expect("it is there").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn an_abandoned_folder_is_removed_by_the_next_mount() {
        let cache = tempfile::tempdir().expect("a folder can be made");
        let folders = cache.path().join(FOLDERS);
        fs::create_dir_all(folders.join("left/over")).expect("a folder can be made");
        fs::write(folders.join("left.lock"), "").expect("a file can be written");
        let folder = MountFolder::make(cache.path()).expect("a folder can be made");
        let other = MountFolder::make(cache.path()).expect("a folder can be made");
        assert!(!folders.join("left").exists() && !folders.join("left.lock").exists());
        assert!(folder.path().is_dir() && other.path().is_dir());
    }
}
