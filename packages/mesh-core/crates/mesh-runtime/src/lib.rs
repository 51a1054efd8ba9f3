//! What runs in a Mesh process.

pub mod segment;
