//! What runs in a Mesh process.
