//! Errors of a store. Each variant is a case that a caller handles differently.

use crate::id::ChunkId;
use std::io;
use std::path::PathBuf;

/// Reason why a store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder belongs to another user, who could modify its contents.
    #[error("{} belongs to user {owner}: use a folder that user {user} owns", folder.display())]
    Foreign {
        /// Folder of the store.
        folder: PathBuf,
        /// User id of the owner.
        owner: u32,
        /// Effective user id of this process.
        user: u32,
    },
    /// Other users have write permission for the folder.
    #[error(
        "other users can write to {} (mode {mode:o}): run chmod 700 on it, or use another folder",
        folder.display()
    )]
    Exposed {
        /// Folder of the store.
        folder: PathBuf,
        /// Permission bits of the folder.
        mode: u32,
    },
    /// The chunk is empty or longer than [`CHUNK_BYTES_MAX`](crate::CHUNK_BYTES_MAX).
    #[error("{length} bytes are not a chunk: a chunk has 1 to {} bytes", crate::CHUNK_BYTES_MAX)]
    Length {
        /// Number of bytes that were passed.
        length: usize,
    },
    /// The bytes do not match the id that was passed with them.
    #[error("chunk {id} has the bytes of chunk {found}: fetch it again")]
    Mismatch {
        /// Expected id.
        id: ChunkId,
        /// Id of the bytes that were passed.
        found: ChunkId,
    },
    /// The requested range exceeds the length of the chunk.
    #[error("bytes {start} to {end} exceed chunk {id}, which has {length} bytes: reduce the range")]
    Range {
        /// The requested chunk.
        id: ChunkId,
        /// First byte of the requested range.
        start: usize,
        /// End of the requested range, exclusive.
        end: usize,
        /// Length of the chunk in bytes.
        length: u32,
    },
    /// The disk or the user's quota is full. The contents of the store are unchanged.
    #[error("no space for {bytes} bytes in {}: free some, or use another folder", folder.display())]
    Full {
        /// Folder of the store.
        folder: PathBuf,
        /// Number of bytes that could not be written.
        bytes: u64,
        /// Error of the system call.
        source: io::Error,
    },
    /// Any other system call failed.
    #[error("cannot {doing} in {}: {source}", folder.display())]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// Folder of the store.
        folder: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
}
