//! One message to many ranks, and their answers back as one.
//!
//! # Layout
//! - [`Group`]: which ranks, described and never enumerated;
//! - [`Order`]: what is to be delivered to them;
//! - [`Tree`]: which hosts a host passes it on to, [`Route`]: how that is told to each;
//! - [`Merge`]: answers on their way to becoming one, [`bundle`]: many answers in one frame.
//!
//! The rules are in `docs/protocol/cast.md`.

pub mod bundle;
mod groups;
mod merge;
mod order;
mod route;
mod tree;

pub use groups::Group;
pub use merge::{Merge, Progress};
pub use order::Order;
pub use route::Route;
pub use tree::Tree;
