//! Compares mounted images with the directories from which they were made.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../mesh-snapshot/tests/forest/mod.rs"]
mod forest;
mod gardener;
mod mounted;
mod written;
