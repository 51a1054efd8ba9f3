//! Compares mounted images with the directories from which they were made.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod gardener;
mod mounted;
#[path = "../../../mesh-snapshot/tests/test_tree/mod.rs"]
mod test_tree;
mod written;
