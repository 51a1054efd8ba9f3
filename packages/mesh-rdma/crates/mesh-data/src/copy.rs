//! Single copies: the transports of a buffer, and copies of rows.

pub mod copy_lease;
pub mod grid;
pub mod pull;
pub mod target;

pub(crate) mod attach;
pub(crate) mod gather;
