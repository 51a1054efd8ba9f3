//! Why files cannot be mounted: one variant for each thing that a caller does differently.

use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Why files are not mounted, or not taken away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The kernel, or the container, has no FUSE.
    #[error(
        "there is no /dev/fuse here ({source}): load the kernel's fuse module, or give the \
         container that device"
    )]
    NoDevice {
        /// What opening it gave.
        source: io::Error,
    },
    /// We may not mount, and there is nobody who might do it for us.
    #[error(
        "mounting is not allowed here ({why}) and there is no fusermount3: install fuse3, or run \
         with CAP_SYS_ADMIN"
    )]
    NotAllowed {
        /// What the system said.
        why: Errno,
    },
    /// Whoever might mount for us did not.
    #[error("{} does not mount: {said}", deputy.display())]
    Refused {
        /// Which program that is.
        deputy: PathBuf,
        /// Its reason, in its own words.
        said: String,
    },
    /// Nobody would take the mount away when this process dies.
    #[error("cannot start /bin/sh, which would unmount when this process dies: {source}")]
    Unguarded {
        /// What the system said.
        source: io::Error,
    },
    /// The kernel speaks a version that lacks what is needed.
    #[error("the kernel speaks FUSE {major}.{minor}: it takes 7.31, that is, Linux 5.4 or later")]
    KernelTooOld {
        /// The first number of its version.
        major: u32,
        /// The second.
        minor: u32,
    },
    /// There is nothing at the mountpoint.
    #[error("there is no {}: create the directory first", point.display())]
    PointMissing {
        /// Where it was to be mounted.
        point: PathBuf,
    },
    /// The mountpoint is something else.
    #[error("{} is not a directory: mount on a directory", point.display())]
    PointNotDirectory {
        /// Where it was to be mounted.
        point: PathBuf,
    },
    /// The mount would hide files.
    #[error("{} is not empty: take an empty directory, or say over_full", point.display())]
    PointNotEmpty {
        /// Where it was to be mounted.
        point: PathBuf,
    },
    /// A mount without anybody who answers is in the way.
    #[error(
        "a dead mount is at {}: take it away with umount -l or fusermount3 -uz",
        point.display()
    )]
    PointDead {
        /// Where it was to be mounted.
        point: PathBuf,
    },
    /// The system failed in something that it should be able to do.
    #[error("{doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl MountError {
    /// Whether nothing can be mounted here, whatever the directory: take another way.
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

    /// A failure of the system in doing something.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}
