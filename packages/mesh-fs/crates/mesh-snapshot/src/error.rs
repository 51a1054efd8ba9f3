//! What can go wrong, by what can be done about it.

use mesh_chunks::ChunkId;
use std::io;
use std::path::PathBuf;

/// Why a tree could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The directory to be taken is not there, or it is no directory.
    #[error("cannot take {}: give a directory that can be listed", path.display())]
    Root {
        /// That directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Something inside cannot be read.
    #[error(
        "cannot read {}: make it readable, ignore it, or skip what is unreadable",
        path.display()
    )]
    Unreadable {
        /// What cannot be read.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A file was never the same before and after its reading.
    #[error(
        "{} changes while it is read: ignore it, or wait until nobody writes it",
        path.display()
    )]
    Changing {
        /// That file.
        path: PathBuf,
    },
    /// A pattern of what is to be ignored has no meaning.
    #[error("bad pattern {pattern:?} in {place}: {why}: correct it")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The options, or the path of a file.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// Directories are nested more than [`DEPTH_MAX`](crate::DEPTH_MAX) times.
    #[error("{} is nested too deeply: ignore it", path.display())]
    TooDeep {
        /// The directory that is too deep.
        path: PathBuf,
    },
    /// What describes the tree would be larger than [`STREAM_LEN_MAX`](crate::STREAM_LEN_MAX).
    #[error("the tree has too many files: ignore some, or take a directory inside it")]
    TooLarge,
}

/// Why a chunk could not be had from the files it was found in.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No file of the snapshot has such a chunk.
    #[error("chunk {0:?} is not of this snapshot: ask for chunks of its tree")]
    Unknown(ChunkId),
    /// The file is not as it was: take the tree again.
    #[error("{} has changed since the snapshot: take another one", path.display())]
    Changed {
        /// That file.
        path: PathBuf,
    },
    /// There are more bytes than there is room for.
    #[error("the chunk is longer than the room for it: give more room")]
    NoRoom,
    /// The system does not give the bytes.
    #[error("cannot read {} again: make it readable", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Why bytes do not describe a tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are of another version of the format, or of something else.
    #[error("not of this version's format: use one version of Mesh everywhere")]
    Version,
    /// They say something that cannot be.
    #[error("malformed at byte {at}: {what}: take the tree again")]
    Malformed {
        /// Where.
        at: usize,
        /// What cannot be.
        what: &'static str,
    },
    /// They say more than a limit allows.
    #[error("too large: take fewer files")]
    TooLarge,
    /// A chunk of the description is not there yet.
    #[error("chunk {0:?} is missing: fetch it first")]
    Missing(ChunkId),
    /// A chunk of the description has other bytes than its name says.
    #[error("chunk {0:?} has wrong bytes: fetch it again")]
    Wrong(ChunkId),
}
