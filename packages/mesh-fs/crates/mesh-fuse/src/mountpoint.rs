//! Validation of mountpoints.

use crate::error::MountError;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Checks whether a directory can be a mountpoint; returns its absolute path.
///
/// # Errors
/// The path is not a directory, or it is not empty and `over_full` is false.
pub fn check(mountpoint: &Path, over_full: bool) -> Result<PathBuf, MountError> {
    let failed = |source| failure(mountpoint, source);
    let whole = mountpoint.canonicalize().map_err(failed)?;
    if !whole.metadata().map_err(failed)?.is_dir() {
        return Err(MountError::MountpointNotDirectory { mountpoint: whole });
    }
    if !over_full && whole.read_dir().map_err(failed)?.next().is_some() {
        return Err(MountError::MountpointNotEmpty { mountpoint: whole });
    }
    Ok(whole)
}

fn failure(mountpoint: &Path, source: io::Error) -> MountError {
    let mountpoint = mountpoint.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => MountError::MountpointMissing { mountpoint },
        Some(Errno::NOTDIR) => MountError::MountpointNotDirectory { mountpoint },
        Some(Errno::NOTCONN | Errno::CONNABORTED) => MountError::MountpointDead { mountpoint },
        _ => MountError::System { doing: "cannot examine the mountpoint", source },
    }
}
