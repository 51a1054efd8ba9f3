//! Bounds of what a description may say, kept by those who write it and checked by those who read.

/// Bytes of the longest chunk of a file.
pub const CHUNK_LEN_MAX: u32 = 128 << 10;
/// Bytes of the longest chunk of a description.
pub const STREAM_CHUNK_LEN_MAX: u32 = 16 << 10;
/// Bytes of the longest description; what it says can be counted in 31 bits.
pub const STREAM_LEN_MAX: u64 = (2 << 30) - 1;
/// Bytes of the longest recipe.
pub const RECIPE_LEN_MAX: usize = 64 << 10;
/// Directories that may be inside each other.
pub const DEPTH_MAX: usize = 4096;
/// Lists of lists that may be needed for a description: four are enough for any length of it.
pub(crate) const LEVEL_MAX: u8 = 4;
/// Bytes of the longest name, as in the kernel.
pub(crate) const NAME_LEN_MAX: usize = 255;
/// Bytes of the longest target of a symbolic link, as in the kernel.
pub(crate) const TARGET_LEN_MAX: usize = 4095;
/// Bytes of the longest value of an extended attribute, as in the kernel.
pub(crate) const XATTR_LEN_MAX: usize = 64 << 10;
