//! A snapshot as an erofs image that is mounted, and what a host writes over it.
//!
//! # Layout
//! - [`Writer`] writes images of trees: a `plan` says where everything lies, in the numbers of
//!   `format`; `inodes` are written with `directory` and `xattrs`, and `content` goes to the
//!   [`blocks`](Image::blocks) of files, which all images of a writer share;
//! - [`Shown`] mounts them at a directory, through `erofs`, and `mounting` puts one in the place of
//!   the other; a `loop_device` does for kernels that mount no files;
//! - [`Overlay`] lets programs of the host write over a tree, whoever shows that;
//! - all files are in a [`Folder`] of the mount's own, of which nothing stays behind.

mod blocks;
mod content;
mod directory;
mod erofs;
mod error;
mod folder;
mod format;
mod inodes;
mod loop_device;
mod mounting;
mod overlay;
mod plan;
mod shown;
mod writer;
mod xattrs;

pub use error::ImageError;
pub use folder::{Folder, remove_left};
pub use overlay::Overlay;
pub use shown::{Shown, ShownOptions};
pub use writer::{Image, Writer};
