//! Errors of overlays. Each variant is a case that a caller handles differently.

use std::io;
use std::path::{Path, PathBuf};

use mesh_chunks::StoreError;
use mesh_fuse::MountError;
use rustix::io::Errno;

/// Reason why an overlay cannot be mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// This machine does not support it for any tree. Use another backend.
    #[error("{what} is not possible here: {message}: {remedy}")]
    Forbidden {
        /// Operation that is not supported.
        what: &'static str,
        /// Message of the system.
        message: String,
        /// Suggested remedy.
        remedy: &'static str,
    },
    /// The disk has no space for the folder of the overlay.
    #[error(
        "no space for written files in {}: free some, or use another folder for the host's cache",
        folder.display()
    )]
    Full {
        /// Folder of the overlay.
        folder: PathBuf,
    },
    /// The mountpoint is not suitable, or the guardian process cannot be started.
    #[error(transparent)]
    Point(#[from] MountError),
    /// The host's cache folder is not usable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed that is expected to work.
    #[error("cannot {doing} at {}: {source}", path.display())]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the operation.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

impl OverlayError {
    /// Returns whether this machine does not support it for any tree.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Forbidden { .. } => true,
            Self::Point(error) => error.is_forbidden(),
            _ => false,
        }
    }

    /// Converts a system error; a lack of disk space becomes `Full`.
    pub(crate) fn system<E: Into<io::Error>>(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self + use<E> {
        let path = path.to_owned();
        move |source| {
            let source = source.into();
            match Errno::from_io_error(&source) {
                Some(Errno::NOSPC | Errno::DQUOT) => Self::Full { folder: parent(path) },
                _ => Self::System { doing, path, source },
            }
        }
    }
}

fn parent(path: PathBuf) -> PathBuf {
    path.parent().map(Path::to_owned).unwrap_or(path)
}
