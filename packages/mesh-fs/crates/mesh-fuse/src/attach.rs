//! Putting files into the tree of the system, and taking them away.

use crate::deputy::Deputy;
use crate::device::Device;
use crate::error::MountError;
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

/// What the mount table says of the kind of our mounts.
pub(crate) const KIND: &str = "fuse.mesh";
/// The part of it that is our own.
pub(crate) const SUBTYPE: &str = "mesh";

/// A mount in the tree.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// What it is known by; no other mount has it.
    source: String,
    /// Who has mounted it, if it was not ourselves.
    deputy: Option<Deputy>,
}

/// Mounts with our own rights, or has it done.
pub(crate) fn attach(
    point: &Path,
    source: &str,
    options: &MountOptions,
    guardian: &Guardian,
) -> Result<(Device, Attachment), MountError> {
    let own = Device::open();
    let why = match own {
        Ok(device) => match mount(&device, point, source, options) {
            Ok(()) => return Ok((device, Attachment { source: source.into(), deputy: None })),
            Err(why @ (Errno::PERM | Errno::ACCESS)) => why,
            Err(Errno::NODEV) => return Err(MountError::NoDevice { source: Errno::NODEV.into() }),
            Err(error) => return Err(MountError::system("cannot mount")(error)),
        },
        // The deputy may have more rights to the device, too.
        Err(why @ (Errno::PERM | Errno::ACCESS)) => why,
        Err(error @ (Errno::NOENT | Errno::NODEV | Errno::NXIO)) => {
            return Err(MountError::NoDevice { source: error.into() });
        }
        Err(error) => return Err(MountError::system("cannot open /dev/fuse")(error)),
    };
    let deputy = Deputy::find().ok_or(MountError::NotAllowed { why })?;
    let fd = deputy.mount(point, source, options, guardian)?;
    let device = Device::adopt(fd).map_err(MountError::system("cannot use the mount"))?;
    Ok((device, Attachment { source: source.into(), deputy: Some(deputy) }))
}

fn mount(device: &Device, point: &Path, source: &str, options: &MountOptions) -> Result<(), Errno> {
    let other = if options.allow_other { ",allow_other" } else { "" };
    let (number, user, group) = (device.as_fd().as_raw_fd(), getuid().as_raw(), getgid().as_raw());
    let told = format!(
        "fd={number},rootmode=40000,user_id={user},group_id={group},default_permissions{other}"
    );
    let told = CString::new(told).map_err(|_| Errno::INVAL)?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount(source, point, KIND, flags, told.as_c_str())
}

impl Attachment {
    /// Where it is in the tree, if it still is.
    pub(crate) fn find(&self) -> io::Result<Vec<Mounted>> {
        table::find(KIND, &self.source)
    }

    /// Has the kernel read ahead so far, where we may say so.
    pub(crate) fn read_ahead(&self, bytes: u32) {
        let mounted = self.find().unwrap_or_default();
        if let Some(Mounted { device, .. }) = mounted.first() {
            let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
            // Without the right to do this it goes on as is usual here.
            let _ = fs::write(path, (bytes / 1024).to_string());
        }
    }

    /// Takes it away, even if files of it are open.
    pub(crate) fn detach(&self) -> Result<(), MountError> {
        let doing = "cannot read what is mounted";
        let mounted = self.find().map_err(MountError::system(doing))?;
        mounted.iter().try_for_each(|mounted| self.unmount(mounted))
    }

    fn unmount(&self, mounted: &Mounted) -> Result<(), MountError> {
        let doing = "cannot unmount";
        if mounted.is_covered {
            // What would be taken away is not ours.
            return Err(MountError::system(doing)(Errno::BUSY));
        }
        if let Some(deputy) = &self.deputy {
            return deputy.unmount(&mounted.point);
        }
        let lazy = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        // By force, whoever waits for an answer is sent away at once. That takes more rights.
        let by_force = rustix::mount::unmount(&mounted.point, lazy | UnmountFlags::FORCE);
        let unmounted = by_force.or_else(|_| rustix::mount::unmount(&mounted.point, lazy));
        match unmounted {
            // Somebody else was faster.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
            Err(error) => Err(MountError::system(doing)(error)),
        }
    }
}
