//! Overlays, which let programs of a host write over a tree that is mounted read-only.
//!
//! # Layout
//! - [`Overlay`] combines a mounted tree with the writes of the host, and `mount_stack` replaces
//!   one mount by the next;
//! - all files are in a [`MountFolder`] dedicated to the mount, which is always removed in the end.

mod error;
mod mount_folder;
mod mount_stack;
mod overlay;

pub use error::OverlayError;
pub use mount_folder::{MountFolder, remove_left};
pub use overlay::Overlay;
