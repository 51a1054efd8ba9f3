//! Snapshots as mounted erofs images, and overlays for writes of a host.
//!
//! # Layout
//! - [`Writer`] writes images of trees: a `plan` assigns locations to everything, with the
//!   constants of `format`. `inodes` are written with `directory` and `xattrs`, and `content` goes
//!   to the data [`blocks`](Image::blocks) of files, which all images of a writer share;
//! - [`Shown`] mounts images at a directory through `erofs`, and `mount_stack` replaces one mount by
//!   the next. Kernels that cannot mount files use a `loop_device`;
//! - [`Overlay`] lets programs of the host write over a tree, regardless of how the tree is shown;
//! - all files are in a [`MountFolder`] dedicated to the mount, which is always removed in the end.

mod blocks;
mod content;
mod directory;
mod erofs;
mod error;
mod format;
mod inodes;
mod loop_device;
mod mount_folder;
mod mount_stack;
mod overlay;
mod plan;
mod shown;
mod writer;
mod xattrs;

pub use error::ImageError;
pub use mount_folder::{MountFolder, remove_left};
pub use overlay::Overlay;
pub use shown::{Shown, ShownOptions};
pub use writer::{Image, Writer};
