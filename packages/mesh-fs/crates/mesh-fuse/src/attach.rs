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
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// File system type of our mounts in the mount table.
pub(crate) const KIND: &str = "fuse.mesh";
/// Subtype in `KIND`.
pub(crate) const SUBTYPE: &str = "mesh";

/// A mount in the mount table, found by its source.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// Unique source, which needs no escaping.
    source: String,
}

/// Mounts with the privileges of this process, or through the helper program.
pub(crate) fn attach(
    mountpoint: &Path,
    attachment: &Attachment,
    options: &MountOptions,
    guardian: &Guardian,
) -> Result<Device, MountError> {
    let source = attachment.source();
    let own = Device::open();
    let why = match own {
        Ok(device) => match mount(&device, mountpoint, source, options) {
            Ok(()) => return Ok(device),
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
    Device::adopt(fd).map_err(MountError::system("cannot use the mount"))
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
    /// Generates a unique source that starts with `name`.
    pub(crate) fn unique(name: &str) -> Result<Self, MountError> {
        let mut random = [0; 8];
        getrandom(&mut random, GetRandomFlags::empty())
            .map_err(MountError::system("cannot generate random numbers"))?;
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ".:/@+_".contains(*letter);
        let plain =
            name.chars().take(64).map(|letter| if is_plain(&letter) { letter } else { '-' });
        let plain: String = plain.collect();
        Ok(Self { source: format!("{plain}-{:016x}", u64::from_ne_bytes(random)) })
    }

    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Sets the read-ahead size of the kernel, if this process may do so.
    pub(crate) fn set_read_ahead(&self, bytes: u32) {
        let mounted = table::find(KIND, &self.source).unwrap_or_default();
        if let Some(Mounted { device, .. }) = mounted.first() {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            // Without the permission, the system's default applies.
            let _ = fs::write(path, (bytes / 1024).to_string());
        }
    }

    /// Unmounts it, even if its files are open.
    pub(crate) fn detach(&self) -> Result<(), MountError> {
        let doing = "cannot read what is mounted";
        let mounted = table::find(KIND, &self.source).map_err(MountError::system(doing))?;
        mounted.iter().try_for_each(unmount)
    }
}

/// Unmounts with the privileges of this process, or through the helper program.
pub(crate) fn unmount(mounted: &Mounted) -> Result<(), MountError> {
    let doing = "cannot unmount";
    if mounted.is_covered {
        // The unmount would affect a mount that is not ours.
        return Err(MountError::system(doing)(Errno::BUSY));
    }
    let lazy = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    // A forced unmount fails pending requests at once, but requires more privileges.
    let by_force = rustix::mount::unmount(&mounted.mountpoint, lazy | UnmountFlags::FORCE);
    let unmounted = by_force.or_else(|_| rustix::mount::unmount(&mounted.mountpoint, lazy));
    match unmounted {
        // Someone else has unmounted it.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(error) => match Fusermount::find().filter(|_| error == Errno::PERM) {
            Some(fusermount) => fusermount.unmount(&mounted.mountpoint),
            None => Err(MountError::system(doing)(error)),
        },
    }
}
