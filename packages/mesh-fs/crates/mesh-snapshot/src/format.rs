//! The description of a tree as bytes: written, checked and cut into chunks.

pub(crate) mod cursor;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod limits;
pub(crate) mod recipe;
pub(crate) mod varint;
