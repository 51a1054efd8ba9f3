//! File systems put into the tree of the system, one in the place of another, and taken away.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use mesh_fuse::find_mount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// Puts a mount below the one that is there. Linux has it since 6.5.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);
/// What the kernel says of why it does not mount is as long as this at most.
const REASON_LEN: usize = 4096;

/// Why the kernel does not mount.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) errno: Errno,
    /// In its own words, or in those of the number.
    pub(crate) said: String,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self { errno, said: io::Error::from(errno).to_string() }
    }
}

/// Makes a mount that is nowhere in the tree.
pub(crate) fn make(
    kind: &str,
    options: &[(&str, &OsStr)],
    is_writable: bool,
) -> Result<OwnedFd, Refusal> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let configure = || {
        for (key, value) in options {
            fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
        if !is_writable {
            fsconfig_set_flag(context.as_fd(), "ro")?;
        }
        fsconfig_create(context.as_fd())
    };
    configure().map_err(|errno| Refusal { errno, said: reason(&context, errno) })?;
    let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    if !is_writable {
        flags |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// The last thing that the kernel has said of why it does not mount.
fn reason(context: &OwnedFd, errno: Errno) -> String {
    let mut last = io::Error::from(errno).to_string();
    let mut line = [0; REASON_LEN];
    while let Ok(len) = rustix::io::read(context, &mut line) {
        let said = String::from_utf8_lossy(&line[..len]);
        // Each has a letter before it that says how bad it is.
        last = format!("{} ({})", said.get(2..).unwrap_or(&said).trim(), io::Error::from(errno));
    }
    last
}

/// A path by which the kernel finds what is open, whatever letters are in its name.
pub(crate) fn by_number(fd: BorrowedFd<'_>) -> OsString {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Opens a directory so that others may be told of it by its number.
pub(crate) fn directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// A directory where one file system after another is shown.
#[derive(Debug)]
pub(crate) struct Place {
    point: PathBuf,
    /// The numbers of our mounts there, the one that is seen last.
    mounts: Vec<u64>,
}

impl Place {
    /// Takes a directory, where nothing is shown yet.
    pub(crate) fn new(point: PathBuf) -> Self {
        Self { point, mounts: Vec::new() }
    }

    /// Shows a file system, in the place of the one before if there is one: who opens something
    /// sees the one or the other, and who has it open goes on in the one before.
    pub(crate) fn show(&mut self, mount: &OwnedFd) -> io::Result<()> {
        let number = number(mount)?;
        let Some(before) = self.mounts.last().copied() else {
            self.put(mount, MoveMountFlags::empty())?;
            self.mounts.push(number);
            return Ok(());
        };
        // What somebody else has mounted over it stays over the new one.
        let is_ours = find_mount(before)?.is_some_and(|found| !found.is_covered);
        let beneath = if is_ours { self.put(mount, BENEATH) } else { Err(Errno::INVAL) };
        match beneath {
            Ok(()) => {
                let last = self.mounts.len() - 1;
                self.mounts.insert(last, number);
                self.take_away(before)?;
            }
            // Then the one before stays behind it until all are taken away.
            Err(Errno::INVAL) => {
                self.put(mount, MoveMountFlags::empty())?;
                self.mounts.push(number);
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    fn put(&self, mount: &OwnedFd, more: MoveMountFlags) -> rustix::io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | more;
        move_mount(mount.as_fd(), "", CWD, &self.point, flags)
    }

    fn take_away(&mut self, number: u64) -> io::Result<()> {
        if let Some(found) = find_mount(number)? {
            if found.is_covered {
                // What would be taken away is not ours.
                return Err(Errno::BUSY.into());
            }
            match unmount(&found.point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                // Somebody else was faster.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.mounts.retain(|other| *other != number);
        Ok(())
    }

    /// Takes away all that is shown, even if files of it are open.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        while let Some(last) = self.mounts.last() {
            self.take_away(*last)?;
        }
        Ok(())
    }

    /// Whether something of ours is shown.
    pub(crate) fn is_open(&self) -> bool {
        let shown = self.mounts.last().map(|last| find_mount(*last));
        shown.is_some_and(|found| found.is_ok_and(|found| found.is_some()))
    }

    /// Where that is.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }
}

/// The number that the mount table has for a mount.
fn number(mount: &OwnedFd) -> io::Result<u64> {
    let told = statx(mount, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if told.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(told.stx_mnt_id)
}
