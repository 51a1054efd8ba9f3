//! Errors of mounts. Each variant is a case that a caller handles differently.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Reason why a file system cannot be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel or the container does not provide FUSE.
    #[error(
        "there is no /dev/fuse here ({source}): load the kernel's fuse module, or give the \
         container that device"
    )]
    NoDevice {
        /// Error of opening the device.
        source: io::Error,
    },
    /// This process may not mount, and no helper program is installed.
    #[error(
        "mounting is not allowed here ({why}) and there is no fusermount3: install fuse3, or run \
         with CAP_SYS_ADMIN"
    )]
    NotAllowed {
        /// Error of the system call.
        why: Errno,
    },
    /// The helper program failed to mount.
    #[error("{} failed to mount: {message}", fusermount.display())]
    Refused {
        /// Path of the helper program.
        fusermount: PathBuf,
        /// Its error output.
        message: String,
    },
    /// The guardian, which unmounts when this process dies, cannot be started.
    #[error("cannot start /bin/sh, which would unmount when this process dies: {source}")]
    Unguarded {
        /// Error of the system call.
        source: io::Error,
    },
    /// The protocol version of the kernel is too old.
    #[error("the kernel supports FUSE {major}.{minor}, not 7.31: use Linux 5.4 or later")]
    KernelTooOld {
        /// Major version of the kernel's protocol.
        major: u32,
        /// Minor version.
        minor: u32,
    },
    /// The mountpoint does not exist.
    #[error("there is no {}: create the directory first", mountpoint.display())]
    MountpointMissing {
        /// Path of the mountpoint.
        mountpoint: PathBuf,
    },
    /// The mountpoint is not a directory.
    #[error("{} is not a directory: mount on a directory", mountpoint.display())]
    MountpointNotDirectory {
        /// Path of the mountpoint.
        mountpoint: PathBuf,
    },
    /// The directory is not empty, and the mount would hide its files.
    #[error("{} is not empty: use an empty directory, or set over_full", mountpoint.display())]
    MountpointNotEmpty {
        /// Path of the mountpoint.
        mountpoint: PathBuf,
    },
    /// A mount whose server has died is at the mountpoint.
    #[error(
        "a dead mount is at {}: remove it with umount -l or fusermount3 -uz",
        mountpoint.display()
    )]
    MountpointDead {
        /// Path of the mountpoint.
        mountpoint: PathBuf,
    },
    /// A system call failed that is expected to work.
    #[error("{doing}: {source}")]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
}

impl MountError {
    /// Returns whether nothing can be mounted on this machine. Use another backend then.
    pub fn is_forbidden(&self) -> bool {
        matches!(
            self,
            Self::NoDevice { .. }
                | Self::NotAllowed { .. }
                | Self::Refused { .. }
                | Self::Unguarded { .. }
                | Self::KernelTooOld { .. }
        )
    }

    /// Returns a function that converts a system error.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
