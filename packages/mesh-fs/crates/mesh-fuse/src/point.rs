//! Validation of mountpoints.

use crate::error::MountError;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

/// Checks whether a directory can be a mountpoint; returns its absolute path.
///
/// # Errors
/// The path is not a directory, or it is not empty and `over_full` is false.
pub fn check(point: &Path, over_full: bool) -> Result<PathBuf, MountError> {
    let failed = |source| failure(point, source);
    let whole = point.canonicalize().map_err(failed)?;
    if !whole.metadata().map_err(failed)?.is_dir() {
        return Err(MountError::PointNotDirectory { point: whole });
    }
    if !over_full && whole.read_dir().map_err(failed)?.next().is_some() {
        return Err(MountError::PointNotEmpty { point: whole });
    }
    Ok(whole)
}

fn failure(point: &Path, source: io::Error) -> MountError {
    let point = point.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => MountError::PointMissing { point },
        Some(Errno::NOTDIR) => MountError::PointNotDirectory { point },
        Some(Errno::NOTCONN | Errno::CONNABORTED) => MountError::PointDead { point },
        _ => MountError::System { doing: "cannot examine the mountpoint", source },
    }
}
