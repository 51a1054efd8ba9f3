//! Limits of descriptions. Encoders adhere to them, and decoders enforce them.

/// Maximum length of a chunk of a file in bytes.
pub const CHUNK_LEN_MAX: u32 = 128 << 10;
/// Maximum length of a chunk of a description in bytes.
pub const STREAM_CHUNK_LEN_MAX: u32 = 16 << 10;
/// Maximum length of a description in bytes. All counts in it fit into 31 bits.
pub const STREAM_LEN_MAX: u64 = (2 << 30) - 1;
/// Maximum length of a recipe in bytes.
pub const RECIPE_LEN_MAX: usize = 64 << 10;
/// Maximum nesting depth of directories.
pub const DEPTH_MAX: usize = 4096;
/// Maximum level of a recipe. Four levels suffice for a description of any length.
pub(crate) const LEVEL_MAX: u8 = 4;
/// Maximum length of a name in bytes, the same as in the kernel.
pub(crate) const NAME_LEN_MAX: usize = 255;
/// Maximum length of the target of a symbolic link in bytes, the same as in the kernel.
pub(crate) const TARGET_LEN_MAX: usize = 4095;
/// Maximum length of the value of an extended attribute in bytes, the same as in the kernel.
pub(crate) const XATTR_LEN_MAX: usize = 64 << 10;
