//! Content-addressed chunks, and a store for them on disk.
//!
//! A [`Store`] keeps chunks in a folder that several processes of a user share. Each process may
//! exit or be killed at any time: a chunk that another process reads is either correct or missing.
//!
//! ```
//! use mesh_chunks::{ChunkId, Store, StoreOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let store = Store::open(folder.path(), StoreOptions::default())?;
//! let id = ChunkId::of(b"some bytes");
//! store.put(id, b"some bytes")?;
//!
//! let other = Store::open(folder.path(), StoreOptions::default())?;
//! assert_eq!(other.get(&id)?.as_deref(), Some(&b"some bytes"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layout
//! - [`Store`] is the public interface; `reading` and `writing` contain its two halves;
//! - `id` defines the ids of chunks, and `check` the checksum in them that detects damage;
//! - `folder` contains all file operations on the folder. Each pack there is a file of chunks and a
//!   file of `record`s;
//! - `pack` is the state of one pack, `writer` appends to a pack, and `writer_pool` assigns writers
//!   to threads;
//! - `catalogue` maps chunks to their locations, and `scan` updates it from the folder;
//! - `page_cache` evicts chunks that were read from the page cache, if configured;
//! - `eviction` keeps the folder within its budget;
//! - `trusted_path` opens folders without following symbolic links of other users.
//!
//! # Consistency
//! A process that appends to a pack holds a lock on its file, which the kernel releases when the
//! process exits. The bytes of a chunk are written before its record, and written data is never
//! moved. The store returns a chunk only after it has verified the checksum in the chunk's id.
//! Nothing is flushed to the disk explicitly, so some chunks may be damaged after a power failure:
//! they are detected when they are read, and are reported as missing from then on.

mod catalogue;
mod check;
mod error;
mod eviction;
mod folder;
mod id;
mod locks;
mod options;
mod pack;
mod page_cache;
mod reading;
mod record;
mod scan;
mod store;
mod trusted_path;
mod writer;
mod writer_pool;
mod writing;

pub use error::StoreError;
pub use folder::own_folder;
pub use id::{ChunkId, InvalidId};
pub use options::StoreOptions;
pub use store::{Store, Usage};
pub use trusted_path::{is_trusted, open_trusted};

/// Maximum length of a chunk in bytes.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
