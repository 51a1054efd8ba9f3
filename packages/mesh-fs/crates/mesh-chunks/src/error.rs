//! What can go wrong with a store: one variant for each thing that a caller does differently.

use crate::id::ChunkId;
use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder belongs to another user, who could change what is in it.
    #[error("{} belongs to user {owner}: name a folder that user {user} owns", folder.display())]
    Foreign {
        /// The store's folder.
        folder: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who this process is.
        user: u32,
    },
    /// Other users may write into the folder.
    #[error(
        "others may write to {} (mode {mode:o}): run chmod 700 on it, or name another folder",
        folder.display()
    )]
    Exposed {
        /// The store's folder.
        folder: PathBuf,
        /// What its permissions are.
        mode: u32,
    },
    /// No bytes, or too many for one chunk.
    #[error("{length} bytes are no chunk: it has 1 to {} of them", crate::CHUNK_BYTES_MAX)]
    Length {
        /// How many there are.
        length: usize,
    },
    /// The bytes are not those of the chunk that they were said to be.
    #[error("the bytes of chunk {id} are those of {found}: get them again")]
    Mismatch {
        /// The chunk that they should be.
        id: ChunkId,
        /// The chunk that they are.
        found: ChunkId,
    },
    /// Bytes behind the end of a chunk were asked for.
    #[error("bytes {start} to {end} of chunk {id}, which has {length}: stay inside")]
    Range {
        /// Which chunk.
        id: ChunkId,
        /// The first byte that was asked for.
        start: usize,
        /// The byte behind the last one that was asked for.
        end: usize,
        /// How many there are.
        length: u32,
    },
    /// The disk is full, or what the user may have of it. What was in the store is there as before.
    #[error("no room for {bytes} bytes in {}: free some, or name another folder", folder.display())]
    Full {
        /// The store's folder.
        folder: PathBuf,
        /// How many bytes were to be written.
        bytes: u64,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses something else.
    #[error("cannot {doing} in {}: {source}", folder.display())]
    System {
        /// What was tried.
        doing: &'static str,
        /// The store's folder.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}
