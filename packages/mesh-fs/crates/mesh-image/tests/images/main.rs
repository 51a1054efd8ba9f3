//! Images of directories, mounted, next to those directories.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../../mesh-snapshot/tests/forest/mod.rs"]
mod forest;
mod gardener;
mod mounted;
mod written;
