//! A folder for one mount, of which nothing stays behind.

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

use crate::error::ImageError;

/// Where such folders are, in the folder of what the host keeps.
const SHELF: &str = "shown";
/// What the lock of a folder is called, behind its name.
const LOCK: &str = ".lock";
/// The kernel takes sources of mounts up to 255 bytes, and files in the folder are such.
const PATH_LEN_MAX: usize = 220;

/// What is done when this process has died: `$1` is the folder.
///
/// What is mounted from files in it is unmounted, and what is mounted in it; files with `deleted`
/// behind their names are those of devices whose file was removed. It begins anew after each, as
/// the table is another then.
const TIDYING: &str = r#"
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
    while read -r id _ device _ point rest; do
        source=${rest##* - }
        source=${source#* }
        plain "${source%% *}"
        backing=
        [ -r "/sys/dev/block/$device/loop/backing_file" ] &&
            read -r backing < "/sys/dev/block/$device/loop/backing_file"
        is_in "$1" "$plain" || is_in "$1" "$backing" || { plain "$point"; is_in "$1" "$plain"; } ||
            continue
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

/// A folder of a mount's own, until this is closed or dropped, or until this process dies.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held as long as the folder is in use.
    lock: File,
    guardian: Mutex<Option<Guardian>>,
    /// The process that has made it.
    owner: u32,
}

impl Folder {
    /// Makes one in the folder of what the host keeps, and removes those whose owners are gone and
    /// could not be tidied up after.
    ///
    /// # Errors
    /// [`ImageError::Full`] and [`ImageError::System`]: it cannot be made.
    pub fn make(kept: &Path) -> Result<Self, ImageError> {
        let shelf = kept.join(SHELF);
        own_folder(&shelf)?;
        let shelf = shelf.canonicalize().map_err(ImageError::system("find a folder", &shelf))?;
        sweep(&shelf);
        let mut number = [0; 8];
        getrandom(&mut number, GetRandomFlags::empty())
            .map_err(ImageError::system("take random numbers", &shelf))?;
        let path = shelf.join(format!("{:016x}", u64::from_ne_bytes(number)));
        if path.as_os_str().len() > PATH_LEN_MAX {
            return Err(ImageError::Forbidden {
                what: "mounting files from a folder with so long a path",
                said: format!("{} has more than {PATH_LEN_MAX} bytes", path.display()),
                remedy: "name another folder for what the host keeps",
            });
        }
        let guardian = Guardian::start(TIDYING, &[path.as_os_str()])?;
        let lock = lock_new(&path).map_err(ImageError::system("lock a folder", &path))?;
        let guardian = Mutex::new(Some(guardian));
        let folder = Self { path, lock, guardian, owner: process::id() };
        let made = DirBuilder::new().mode(0o700).create(&folder.path);
        made.map_err(ImageError::system("make a folder", &folder.path))?;
        Ok(folder)
    }

    /// Where it is: a path from the root on.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, ImageError> {
        let path = self.path.join(name);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map(|()| path.clone()).map_err(ImageError::system("make a folder", &path))
    }

    /// Removes it with all that is in it. What was mounted from it must not be any more.
    pub fn close(&self) {
        if self.owner != process::id() {
            return;
        }
        let guardian = self.guardian.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(guardian) = guardian else { return };
        match remove(&self.path, &self.lock) {
            Ok(()) => guardian.dismiss(),
            // It tries it in its way.
            Err(_) => drop(guardian),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.owner == process::id() {
            self.close();
        } else {
            // The guardian is that of the process that has made the folder.
            std::mem::forget(self.guardian.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.extend(LOCK.as_bytes());
    OsString::from_vec(name).into()
}

/// Makes the lock of a folder that is not there yet.
fn lock_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    loop {
        let lock = options.open(lock_path(path))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        // Who removes what others left may have taken it for such.
        if lock.metadata()?.nlink() > 0 {
            return Ok(lock);
        }
    }
}

/// Removes a folder, and then its lock, which this process holds.
fn remove(path: &Path, _held: &File) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::NOENT) => Err(error),
        _ => fs::remove_file(lock_path(path)),
    }
}

/// Unmounts and removes what processes of this user have left in the folder of what the host keeps:
/// processes that were killed together with their guardians.
pub fn remove_left(kept: &Path) {
    let shelf = kept.join(SHELF);
    if shelf.is_dir()
        && own_folder(&shelf).is_ok()
        && let Ok(shelf) = shelf.canonicalize()
    {
        sweep(&shelf);
    }
}

/// Removes what nobody holds any more, as far as that can be done.
fn sweep(shelf: &Path) {
    for entry in fs::read_dir(shelf).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.as_bytes().strip_suffix(LOCK.as_bytes()) else { continue };
        let path = shelf.join(OsString::from_vec(name.to_vec()));
        let Ok(lock) = File::open(entry.path()) else { continue };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // A guardian goes to work when it is dropped: it unmounts, and removes the folder.
            drop(Guardian::start(TIDYING, &[path.as_os_str()]));
            // What is still mounted in it stays.
            let _ = remove(&path, &lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_goes_with_what_is_in_it() {
        let kept = tempfile::tempdir().expect("a folder can be made");
        let folder = Folder::make(kept.path()).expect("a folder can be made");
        let inside = folder.directory("a/b").expect("a folder can be made");
        fs::write(inside.join("file"), "x").expect("a file can be written");
        folder.close();
        let left = fs::read_dir(kept.path().join(SHELF)).expect("it is there").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn what_nobody_holds_is_removed_by_the_next() {
        let kept = tempfile::tempdir().expect("a folder can be made");
        let shelf = kept.path().join(SHELF);
        fs::create_dir_all(shelf.join("left/over")).expect("a folder can be made");
        fs::write(shelf.join("left.lock"), "").expect("a file can be written");
        let folder = Folder::make(kept.path()).expect("a folder can be made");
        let other = Folder::make(kept.path()).expect("a folder can be made");
        assert!(!shelf.join("left").exists() && !shelf.join("left.lock").exists());
        assert!(folder.path().is_dir() && other.path().is_dir());
    }
}
