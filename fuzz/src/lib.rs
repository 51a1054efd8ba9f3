//! What the fuzz targets share.
//!
//! A target is a file of `targets/`: bytes in, and whatever they are, no panic, no lie, and no more
//! memory than it says. `python3 -m tools nox -s fuzz` runs them all.

mod input;
mod members;
mod memory;

pub use input::Input;
pub use members::{carry, linked, members};
pub use memory::bounded;
