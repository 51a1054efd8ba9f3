//! What a tree of files was at one moment: metadata, and chunks by their hash.
//!
//! # Layout
//! - Where the files are: [`Snapshot`] is taken in a `walk` that makes a `listing` of each
//!   directory, without what `ignores` leave out, and then reads all `content` with a
//!   `reader_pool`. A `file_reader` gets the content of one `source`, which may change meanwhile,
//!   cut into chunks by a `chunker`; an `assembly` puts all in order.
//!   A [`Ledger`] keeps what was in them for the programs to come, in a [`LedgerPlace`].
//! - Where they are shown: [`Recipe`] says which chunks the description of a tree has, and [`Tree`]
//!   is that description in memory. [`compare`] says what is different in a later one.
//! - Between both: the `format` is written by `encode` and checked by `decode`, within `limits`;
//!   `privilege` says what of it no host gives to files of its own.

mod assembly;
mod content;
mod error;
mod format;
mod ledger;
mod options;
mod snapshot;
mod tree;
mod walk;

/// The name of a chunk.
pub use mesh_chunks::ChunkId;

pub use error::{DecodeError, ReadError, SnapshotError};
pub use format::limits::{
    CHUNK_LEN_MAX, DEPTH_MAX, RECIPE_LEN_MAX, STREAM_CHUNK_LEN_MAX, STREAM_LEN_MAX,
};
pub use format::recipe::{Joined, Recipe};
pub use ledger::Ledger;
pub use ledger::place::LedgerPlace;
pub use options::Options;
pub use snapshot::Snapshot;
pub use tree::Tree;
pub use tree::attributes::{Attributes, Extent, Kind, NodeId, Totals};
pub use tree::compare::{Change, Comparison, compare};
pub use tree::name::is_name;
pub use tree::privilege::is_unprivileged_xattr;
