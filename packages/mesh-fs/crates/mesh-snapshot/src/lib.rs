//! Snapshots of directory trees: metadata, and file contents as chunks that are named by their
//! hash.
//!
//! # Layout
//! - On the client: [`Snapshot`] is taken by a `walk`, which makes a `listing` of each directory
//!   without the files that `ignores` exclude. A `reader_pool` then reads the `content` of all
//!   files: a `file_reader` reads one `source`, which may change during the read, and a `chunker`
//!   splits it. An `assembly` puts the results into the order of the tree. A [`Ledger`] records the
//!   results for later programs in a file that a [`LedgerFile`] locates.
//! - On the hosts: [`Recipe`] lists the chunks of the description of a tree, and [`Tree`] is the
//!   description in memory. [`compare`] lists the differences between two trees.
//! - Shared: the `format` of descriptions is written by `encode` and validated by `decode`, within
//!   `limits`; `privilege` defines which metadata hosts do not apply to files that they write.

mod assembly;
mod content;
mod error;
mod format;
mod ledger;
mod options;
mod snapshot;
mod tree;
mod walk;

/// Identifier of a chunk.
pub use mesh_chunks::ChunkId;

pub use error::{DecodeError, ReadError, SnapshotError};
pub use format::limits::{
    CHUNK_LEN_MAX, DEPTH_MAX, RECIPE_LEN_MAX, STREAM_CHUNK_LEN_MAX, STREAM_LEN_MAX,
};
pub use format::recipe::{Joined, Recipe};
pub use ledger::Ledger;
pub use ledger::ledger_file::LedgerFile;
pub use options::Options;
pub use snapshot::Snapshot;
pub use tree::Tree;
pub use tree::attributes::{Attributes, Extent, Kind, NodeId, Totals};
pub use tree::compare::{Change, Comparison, compare};
pub use tree::name::is_name;
pub use tree::privilege::is_unprivileged_xattr;
