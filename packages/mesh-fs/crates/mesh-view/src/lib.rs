//! A snapshot as a file system, of chunks that may still have to come.
//!
//! A [`View`] shows one tree at a time and reads its files from the store of the host. What the
//! store has not is *wanted*: the read is parked, whoever delivers chunks is told, and the read is
//! answered when they are there, or with an error when nobody brings them.

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
