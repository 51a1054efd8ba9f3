//! What a tree of files was at one moment: metadata, and chunks by their hash.
//!
//! # Layout
//! - Where the files are: [`Snapshot`] is taken in a `walk` that makes a `listing` of each
//!   directory, without what `ignores` leave out, and then reads all `files` with a `crew` of
//!   threads. `reading` gets the content of one `source`, which may change meanwhile, cut into
//!   chunks by `gear`; an `assembly` puts all in order.
//!   A [`Ledger`] keeps what was in them for the programs to come, in a [`LedgerPlace`].
//! - Where they are shown: [`Recipe`] says which chunks the description of a tree has, and [`Tree`]
//!   is that description in memory. [`compare`] says what is different in a later one.
//! - Between both: the format is in `encode` and checked by `decode`, within `limits`; `privilege`
//!   says what of it no host gives to files of its own.

mod assembly;
mod attributes;
mod compare;
mod crew;
mod cursor;
mod decode;
mod encode;
mod error;
mod files;
mod gear;
mod ignores;
mod ledger;
mod ledger_place;
mod limits;
mod listing;
mod look;
mod name;
mod open_files;
mod options;
mod privilege;
mod reading;
mod recipe;
mod root;
mod snapshot;
mod source;
mod tree;
mod varint;
mod walk;

/// The name of a chunk.
pub use mesh_chunks::ChunkId;

pub use attributes::{Attributes, Extent, Kind, NodeId, Totals};
pub use compare::{Change, Comparison, compare};
pub use error::{DecodeError, ReadError, SnapshotError};
pub use ledger::Ledger;
pub use ledger_place::LedgerPlace;
pub use limits::{CHUNK_LEN_MAX, DEPTH_MAX, RECIPE_LEN_MAX, STREAM_CHUNK_LEN_MAX, STREAM_LEN_MAX};
pub use name::is_name;
pub use options::Options;
pub use privilege::is_unprivileged_xattr;
pub use recipe::{Joined, Recipe};
pub use snapshot::Snapshot;
pub use tree::Tree;
