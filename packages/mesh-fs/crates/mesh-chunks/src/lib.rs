//! Chunks of bytes by their hash, and the store of them on disk.
//!
//! A [`Store`] keeps chunks in a folder that several processes of a user share. Each may end at
//! any time, by force too: what the others read is always right, or missing.
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
//! - [`Store`] is all that others use; `reading` and `writing` are its halves;
//! - `id` is what chunks are called, and `check` the part of that by which damage is seen;
//! - `folder` is the door to the disk. In it are packs: a file of chunks, and one of `record`s;
//! - `pack` is one of them, `writer` adds to one, and `turn` says which thread uses which writer;
//! - `catalogue` knows which chunk lies where, and `looking` brings it up to date;
//! - `sweeper` has the system forget what was read, where that is wanted;
//! - `room` keeps the folder within its budget;
//! - `trusted_path` opens folders without following links of other users.
//!
//! # What makes it safe
//! Who adds to a pack holds a lock on its file, which ends with the process. The bytes of a chunk
//! are written before its record, and what is written is never moved; a chunk is only given out
//! after its sum has been compared with its name. Nothing is forced to the disk, so that after a
//! failure of power some chunks are damaged: they are found when they are read, and are missing
//! from then on.

mod catalogue;
mod check;
mod error;
mod folder;
mod id;
mod locks;
mod looking;
mod options;
mod pack;
mod reading;
mod record;
mod room;
mod store;
mod sweeper;
mod trusted_path;
mod turn;
mod writer;
mod writing;

pub use error::StoreError;
pub use folder::own_folder;
pub use id::{ChunkId, InvalidId};
pub use options::StoreOptions;
pub use store::{Store, Usage};
pub use trusted_path::{is_trusted, open_trusted};

/// How many bytes a chunk has at most.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;
