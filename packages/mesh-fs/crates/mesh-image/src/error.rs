//! Why a tree is not shown: one variant for each thing that a caller does differently.

use std::io;
use std::path::{Path, PathBuf};

use mesh_chunks::{ChunkId, StoreError};
use mesh_fuse::MountError;
use rustix::io::Errno;

/// Why an image is not shown, or nothing can be written over a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// This machine does not do it, whatever the tree: take another way.
    #[error("{what} is not possible here: {said}: {remedy}")]
    Forbidden {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        said: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Chunks are not in the store, or are damaged there: fetch them, and try again.
    #[error("{} chunks are missing, one of them {}: fetch them again", .0.len(), .0[0])]
    Missing(Vec<ChunkId>),
    /// The disk has no room for the image.
    #[error(
        "no room for the image in {}: free some, or name another folder for what the host keeps",
        folder.display()
    )]
    Full {
        /// Where it was to be.
        folder: PathBuf,
    },
    /// The image would take more than may be kept.
    #[error("the image takes {bytes} bytes, and {budget} may be kept: allow more of them")]
    OverBudget {
        /// How many it has.
        bytes: u64,
        /// How many it may have.
        budget: u64,
    },
    /// An image has 16 TiB at most.
    #[error("there are more than 16 TiB of files: show them in another way")]
    TooLarge,
    /// The directory is not one where something may be shown, or nothing would tidy up.
    #[error(transparent)]
    Point(#[from] MountError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system failed in something that it should be able to do.
    #[error("cannot {doing} at {}: {source}", path.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

impl ImageError {
    /// Whether this machine does not do it, whatever the tree.
    pub fn is_forbidden(&self) -> bool {
        match self {
            Self::Forbidden { .. } => true,
            Self::Point(error) => error.is_forbidden(),
            _ => false,
        }
    }

    /// A failure of the system; one for want of room is told apart.
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
