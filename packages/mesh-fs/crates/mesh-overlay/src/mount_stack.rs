//! Mounting, replacing and unmounting file systems.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use mesh_fuse::find_mount;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};

/// `MOVE_MOUNT_BENEATH`: mounts below the existing mount. Available since Linux 6.5.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);
/// Size of the buffer for a message of the kernel about a failed mount, in bytes.
const REASON_LEN: usize = 4096;

/// Reason why the kernel did not mount a file system.
#[derive(Debug)]
pub(crate) struct MountFailure {
    pub(crate) errno: Errno,
    /// Message of the kernel, or the description of `errno`.
    pub(crate) message: String,
}

impl From<Errno> for MountFailure {
    fn from(errno: Errno) -> Self {
        Self { errno, message: io::Error::from(errno).to_string() }
    }
}

/// Creates a detached, writable mount.
pub(crate) fn make(kind: &str, options: &[(&str, &OsStr)]) -> Result<OwnedFd, MountFailure> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    let configure = || {
        for (key, value) in options {
            fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
        fsconfig_create(context.as_fd())
    };
    configure().map_err(|errno| MountFailure { errno, message: reason(&context, errno) })?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?)
}

/// Returns the last message of the kernel about a failed mount.
fn reason(context: &OwnedFd, errno: Errno) -> String {
    let mut last = io::Error::from(errno).to_string();
    let mut line = [0; REASON_LEN];
    while let Ok(len) = rustix::io::read(context, &mut line) {
        let message = String::from_utf8_lossy(&line[..len]);
        // Each message starts with a letter for its severity and a space.
        last =
            format!("{} ({})", message.get(2..).unwrap_or(&message).trim(), io::Error::from(errno));
    }
    last
}

/// Returns a path to an open file that needs no escaping.
pub(crate) fn descriptor_path(fd: BorrowedFd<'_>) -> OsString {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Opens a directory so that its path can be passed by its descriptor.
pub(crate) fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// A directory at which one file system after another is mounted.
#[derive(Debug)]
pub(crate) struct MountStack {
    mountpoint: PathBuf,
    /// Ids of our mounts there; the visible one is last.
    mounts: Vec<u64>,
}

impl MountStack {
    /// Creates the stack of a directory on which nothing is mounted yet.
    pub(crate) fn new(mountpoint: PathBuf) -> Self {
        Self { mountpoint, mounts: Vec::new() }
    }

    /// Mounts a file system, and replaces the previous one atomically, if there is one.
    ///
    /// An open sees either the old or the new file system. Files that are open stay in the old one.
    pub(crate) fn show(&mut self, mount: &OwnedFd) -> io::Result<()> {
        let mount_id = mount_id(mount)?;
        let Some(before) = self.mounts.last().copied() else {
            self.attach(mount, MoveMountFlags::empty())?;
            self.mounts.push(mount_id);
            return Ok(());
        };
        // If someone else has mounted over the previous mount, that mount must stay on top.
        let is_ours = find_mount(before)?.is_some_and(|found| !found.is_covered);
        let beneath = if is_ours { self.attach(mount, BENEATH) } else { Err(Errno::INVAL) };
        match beneath {
            Ok(()) => {
                let last = self.mounts.len() - 1;
                self.mounts.insert(last, mount_id);
                self.unmount_one(before)?;
            }
            // The kernel does not support it. Mount on top; the previous mount stays below until
            // `unmount_all`.
            Err(Errno::INVAL) => {
                self.attach(mount, MoveMountFlags::empty())?;
                self.mounts.push(mount_id);
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    fn attach(&self, mount: &OwnedFd, more: MoveMountFlags) -> rustix::io::Result<()> {
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | more;
        move_mount(mount.as_fd(), "", CWD, &self.mountpoint, flags)
    }

    fn unmount_one(&mut self, mount_id: u64) -> io::Result<()> {
        if let Some(found) = find_mount(mount_id)? {
            if found.is_covered {
                // The unmount would affect a mount that is not ours.
                return Err(Errno::BUSY.into());
            }
            match unmount(&found.mountpoint, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                // Someone else has unmounted it.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.mounts.retain(|other| *other != mount_id);
        Ok(())
    }

    /// Unmounts all our mounts, even if their files are open.
    pub(crate) fn unmount_all(&mut self) -> io::Result<()> {
        while let Some(last) = self.mounts.last() {
            self.unmount_one(*last)?;
        }
        Ok(())
    }

    /// Returns whether one of our mounts is visible.
    pub(crate) fn is_open(&self) -> bool {
        let visible = self.mounts.last().map(|last| find_mount(*last));
        visible.is_some_and(|found| found.is_ok_and(|found| found.is_some()))
    }

    /// The mountpoint.
    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// Returns the id of a mount in the mount table.
fn mount_id(mount: &OwnedFd) -> io::Result<u64> {
    let status = statx(mount, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    if status.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
        return Err(Errno::OPNOTSUPP.into());
    }
    Ok(status.stx_mnt_id)
}
