//! One message to many ranks, and their answers back as one.
//!
//! A cast travels over a [`Tree`] of hosts; each inner host collects the answers below it in a
//! [`Merge`] and sends them up as a bundle (see [`bundle`]), so that nobody handles more frames
//! than the tree is wide. The rules are in `docs/protocol/cast.md`.

pub mod bundle;
mod merge;
mod tree;

pub use merge::{Merge, Progress};
pub use tree::Tree;
