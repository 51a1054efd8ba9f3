//! Code shared by the fuzz targets.
//!
//! A target is a file in `targets/`. For any input bytes, it must not panic, violate an assertion,
//! or use more memory than the limit that it declares. `python3 -m tools nox -s fuzz` runs all
//! targets.

mod input;
mod members;
mod memory;

pub use input::Input;
pub use members::{carry, linked, members};
pub use memory::bounded;
