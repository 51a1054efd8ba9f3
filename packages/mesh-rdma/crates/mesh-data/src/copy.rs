//! Single copies: the transports of a buffer, and copies of rows.

pub mod claim;
pub mod grid;
pub mod pull;
pub mod way;

pub(crate) mod attach;
pub(crate) mod gather;
