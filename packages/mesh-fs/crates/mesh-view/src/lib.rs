//! A snapshot as a file system whose chunks may still be missing.
//!
//! A [`View`] shows one tree at a time and reads its files from the store of the host. A chunk that
//! is not in the store is *wanted*: the read is suspended, the fetcher is notified, and the read
//! completes when the chunk has arrived, or fails if the chunk cannot be fetched.

mod content;
mod deadline;
mod directory;
mod edges;
mod manifest;
mod modules;
mod nodes;
mod parked;
mod refresh;
mod unpack;
mod view;
mod wanted;
mod workspace;

pub use manifest::names as manifest_names;
pub use refresh::{Refresh, Stale};
pub use unpack::{UnpackError, Unpacked};
pub use view::{View, ViewOptions};
pub use workspace::{Synced, Workspace};
