//! Mounting and unmounting.

use crate::device::Device;
use crate::error::MountError;
use crate::fusermount::Fusermount;
use crate::guardian::Guardian;
use crate::options::MountOptions;
use crate::table::{self, Mounted};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// File system type of our mounts in the mount table.
pub(crate) const KIND: &str = "fuse.mesh";
/// Subtype in `KIND`.
pub(crate) const SUBTYPE: &str = "mesh";

/// A mount in the mount table.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// Unique source in the mount table.
    source: String,
    /// Helper program that has mounted it, if this process did not.
    fusermount: Option<Fusermount>,
}

/// Mounts with the privileges of this process, or through the helper program.
pub(crate) fn attach(
    mountpoint: &Path,
    source: &str,
    options: &MountOptions,
    guardian: &Guardian,
) -> Result<(Device, Attachment), MountError> {
    let own = Device::open();
    let why = match own {
        Ok(device) => match mount(&device, mountpoint, source, options) {
            Ok(()) => return Ok((device, Attachment { source: source.into(), fusermount: None })),
            Err(why @ (Errno::PERM | Errno::ACCESS)) => why,
            Err(Errno::NODEV) => return Err(MountError::NoDevice { source: Errno::NODEV.into() }),
            Err(error) => return Err(MountError::system("cannot mount")(error)),
        },
        // The helper program may also have more access rights to the device.
        Err(why @ (Errno::PERM | Errno::ACCESS)) => why,
        Err(error @ (Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
            return Err(MountError::NoDevice { source: error.into() });
        }
        Err(error) => return Err(MountError::system("cannot open /dev/fuse")(error)),
    };
    let fusermount = Fusermount::find().ok_or(MountError::NotAllowed { why })?;
    let fd = fusermount.mount(mountpoint, source, options, guardian)?;
    let device = Device::adopt(fd).map_err(MountError::system("cannot use the mount"))?;
    Ok((device, Attachment { source: source.into(), fusermount: Some(fusermount) }))
}

fn mount(
    device: &Device,
    mountpoint: &Path,
    source: &str,
    options: &MountOptions,
) -> Result<(), Errno> {
    let other = if options.allow_other { ",allow_other" } else { "" };
    let (number, user, group) = (device.as_fd().as_raw_fd(), getuid().as_raw(), getgid().as_raw());
    let mount_options = format!(
        "fd={number},rootmode=40000,user_id={user},group_id={group},default_permissions{other}"
    );
    let mount_options = CString::new(mount_options).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(source, mountpoint, KIND, flags, mount_options.as_c_str())
}

impl Attachment {
    /// Finds the mount in the mount table, if it still exists.
    pub(crate) fn find(&self) -> io::Result<Vec<Mounted>> {
        table::find(KIND, &self.source)
    }

    /// Sets the read-ahead size of the kernel, if this process may do so.
    pub(crate) fn read_ahead(&self, bytes: u32) {
        let mounted = self.find().unwrap_or_default();
        if let Some(Mounted { device, .. }) = mounted.first() {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            // Without the permission, the system's default applies.
            let _ = fs::write(path, (bytes / 1024).to_string());
        }
    }

    /// Unmounts it, even if its files are open.
    pub(crate) fn detach(&self) -> Result<(), MountError> {
        let doing = "cannot read what is mounted";
        let mounted = self.find().map_err(MountError::system(doing))?;
        mounted.iter().try_for_each(|mounted| self.unmount(mounted))
    }

    fn unmount(&self, mounted: &Mounted) -> Result<(), MountError> {
        let doing = "cannot unmount";
        if mounted.is_covered {
            // The unmount would affect a mount that is not ours.
            return Err(MountError::system(doing)(Errno::BUSY));
        }
        if let Some(fusermount) = &self.fusermount {
            return fusermount.unmount(&mounted.mountpoint);
        }
        let lazy = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        // A forced unmount fails pending requests at once, but requires more privileges.
        let by_force = rustix::mount::unmount(&mounted.mountpoint, lazy | UnmountFlags::FORCE);
        let unmounted = by_force.or_else(|_| rustix::mount::unmount(&mounted.mountpoint, lazy));
        match unmounted {
            // Someone else has unmounted it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(error) => Err(MountError::system(doing)(error)),
        }
    }
}
