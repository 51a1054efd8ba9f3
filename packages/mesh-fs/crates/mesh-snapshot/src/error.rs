//! Errors of snapshots. Each variant is a case that a caller handles differently.

use mesh_chunks::ChunkId;
use std::io;
use std::path::PathBuf;

/// Reason why a snapshot could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The directory does not exist or is not a directory.
    #[error("cannot take a snapshot of {}: give a directory that can be listed", path.display())]
    Root {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file or directory inside cannot be read.
    #[error(
        "cannot read {}: make it readable, ignore it, or skip what is unreadable",
        path.display()
    )]
    Unreadable {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// A file changed during each attempt to read it.
    #[error(
        "{} changes while it is read: ignore it, or wait until no program writes to it",
        path.display()
    )]
    Changing {
        /// Path of the file.
        path: PathBuf,
    },
    /// An ignore pattern is invalid.
    #[error("bad pattern {pattern:?} in {location}: {why}: correct it")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Where the pattern is defined: the options, or the path of an ignore file.
        location: String,
        /// Why the pattern is invalid.
        why: String,
    },
    /// Directories are nested more than [`DEPTH_MAX`](crate::DEPTH_MAX) levels deep.
    #[error("{} is nested too deeply: ignore it", path.display())]
    TooDeep {
        /// Path of the directory that is too deep.
        path: PathBuf,
    },
    /// The description would be longer than [`STREAM_LEN_MAX`](crate::STREAM_LEN_MAX).
    #[error("the tree has too many files: ignore some, or use a directory inside it")]
    TooLarge,
}

/// Reason why a chunk could not be read from the files that contained it.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No file of the snapshot contains this chunk.
    #[error("chunk {0:?} does not belong to this snapshot: request chunks of its tree")]
    Unknown(ChunkId),
    /// The file has changed since the snapshot. Take another snapshot.
    #[error("{} has changed since the snapshot: take another one", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
    },
    /// The chunk is longer than the buffer.
    #[error("the chunk is longer than its buffer: pass a larger buffer")]
    BufferTooSmall,
    /// The file cannot be opened or read.
    #[error("cannot read {} again: make it readable", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}

/// Reason why bytes are not a valid description of a tree.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes have a different format version, or are not a description at all.
    #[error("the format is of another version: use the same version of Mesh everywhere")]
    Version,
    /// The bytes violate the format.
    #[error("malformed at byte {at}: {problem}: take another snapshot")]
    Malformed {
        /// Offset of the error.
        at: usize,
        /// The defect at this offset.
        problem: &'static str,
    },
    /// The description exceeds a limit.
    #[error("too large: include fewer files")]
    TooLarge,
    /// A chunk of the description has not been fetched yet.
    #[error("chunk {0:?} is missing: fetch it first")]
    Missing(ChunkId),
    /// The bytes of a chunk do not match its id.
    #[error("chunk {0:?} has wrong bytes: fetch it again")]
    Wrong(ChunkId),
}
