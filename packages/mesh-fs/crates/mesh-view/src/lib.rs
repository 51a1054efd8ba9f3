//! A snapshot as a file system whose chunks may still be missing.
//!
//! A [`View`] shows one tree at a time and reads its files from the store of the host. A chunk that
//! is not in the store is *wanted*: the read is suspended, the fetcher is notified, and the read
//! completes when the chunk has arrived, or fails if the chunk cannot be fetched.

mod chunk_requests;
mod compiled_modules;
mod content;
mod directory;
mod manifest;
mod nodes;
mod partial_chunks;
mod read_timeout;
mod refresh;
mod suspended_reads;
mod unpack;
mod view;
mod workspace;

pub use manifest::names as manifest_names;
pub use refresh::{Refresh, Stale};
pub use unpack::{UnpackError, Unpacked};
pub use view::{View, ViewOptions};
pub use workspace::{Synced, Workspace};
