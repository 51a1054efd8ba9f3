//! Opening a directory by a path that may pass through directories of other users.

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, readlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Maximum number of symbolic links, the same as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens a directory with `O_PATH`. Missing directories are created with the mode.
///
/// Other users may have write permission for a parent directory, as for `/tmp`. Symbolic links of
/// other users are therefore not followed: they could redirect this user's files to any directory.
/// Links that belong to this user or to root are followed.
///
/// # Errors
/// A directory cannot be created or opened, or a symbolic link belongs to another user.
pub fn open_trusted(path: &Path, mode: Mode) -> io::Result<OwnedFd> {
    let mut names = Vec::new();
    push_names(&mut names, path);
    if names.is_empty() {
        return Err(Errno::NOENT.into());
    }
    let mut links_left = LINKS_MAX;
    let mut here = open(CWD, OsStr::new("."))?;
    while let Some(name) = names.pop() {
        let there = match open(&here, &name) {
            Err(Errno::NOENT) => {
                // Another process may create it at the same time.
                mkdirat(&here, &name, mode).or_else(unless_exists)?;
                open(&here, &name)?
            }
            other => other?,
        };
        let stat = fstat(&there)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => here = there,
            FileType::Symlink if links_left == 0 => return Err(Errno::LOOP.into()),
            FileType::Symlink if is_trusted(stat.st_uid) => {
                links_left -= 1;
                let target = readlinkat(&there, "", Vec::new())?;
                push_names(&mut names, Path::new(OsStr::from_bytes(target.as_bytes())));
            }
            FileType::Symlink => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!(
                        "{name:?} is a symbolic link of user {}, which is not followed: pass the \
                         path that it leads to",
                        stat.st_uid
                    ),
                ));
            }
            _ => return Err(Errno::NOTDIR.into()),
        }
    }
    Ok(here)
}

/// Returns whether files of a user are trusted: only root and the effective user of this process
/// are.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Pushes the components of a path onto a stack, with the first component on top.
fn push_names(names: &mut Vec<OsString>, path: &Path) {
    names.extend(path.components().rev().map(|one| one.as_os_str().to_owned()));
}

fn open(directory: impl std::os::fd::AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn unless_exists(error: Errno) -> Result<(), Errno> {
    if error == Errno::EXIST { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, symlink};

    fn opened(path: &Path) -> u64 {
        let directory = open_trusted(path, Mode::RWXU).expect("it can be opened");
        fstat(&directory).expect("it is open").st_ino
    }

    #[test]
    fn missing_directories_are_created() {
        let root = tempfile::tempdir().expect("a folder can be made");
        let deep = root.path().join("a/b/../c");
        let inode = opened(&deep);
        let found = fs::metadata(root.path().join("a/c")).expect("it was created");
        assert_eq!((found.ino(), found.mode() & 0o7777), (inode, 0o700));
    }

    #[test]
    fn links_of_this_user_are_followed() {
        let root = tempfile::tempdir().expect("a folder can be made");
        let there = root.path().join("there/inner");
        fs::create_dir_all(&there).expect("a folder can be made");
        symlink("there", root.path().join("link")).expect("a link can be made");
        symlink(root.path(), root.path().join("whole")).expect("a link can be made");
        let inode = fs::metadata(&there).expect("it is there").ino();
        assert_eq!(opened(&root.path().join("link/inner")), inode);
        assert_eq!(opened(&root.path().join("whole/link/inner")), inode);
    }

    #[test]
    fn a_symlink_loop_is_not_followed() {
        let root = tempfile::tempdir().expect("a folder can be made");
        symlink("loop", root.path().join("loop")).expect("a link can be made");
        let error = open_trusted(&root.path().join("loop"), Mode::RWXU).expect_err("it is a loop");
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }
}
