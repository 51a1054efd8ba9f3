//! Chunks of bytes by their hash, and the store of them on disk.

mod id;

pub use id::ChunkId;
