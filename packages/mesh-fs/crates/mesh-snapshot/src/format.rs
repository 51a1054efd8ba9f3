//! Serialized description of a tree: encoding, validation, and splitting into chunks.

pub(crate) mod cursor;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod limits;
pub(crate) mod recipe;
pub(crate) mod varint;
