//! Multicast: one message to many ranks, and their aggregated replies.
//!
//! # Layout
//! - [`Group`]: a compact description of ranks, which are never enumerated
//! - [`CastHeader`]: the message to deliver to them
//! - [`Tree`]: the hosts to which a host forwards it; [`Route`]: the encoding of the tree in frames
//! - [`Merge`]: the aggregation of replies; [`bundle`]: many replies in one frame
//!
//! The rules are in `docs/protocol/cast.md`.

pub mod bundle;
mod groups;
mod header;
mod merge;
mod route;
mod tree;

pub use groups::Group;
pub use header::CastHeader;
pub use merge::{Merge, Progress};
pub use route::Route;
pub use tree::Tree;
