//! Options of mounts.

use std::fmt;
use std::sync::Arc;

/// Called when a method of a file system panics.
pub type PanicHook = Arc<dyn Fn(&Panicked) + Send + Sync>;

/// A panic in a method of a file system; the reply was `EIO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// Name of the method.
    pub call: &'static str,
    /// Message of the panic.
    pub message: String,
}

/// Options of a mount.
///
/// A mount is always read-only, without devices and setuid programs (`nodev`, `nosuid`), and the
/// kernel checks permissions.
#[derive(Clone)]
pub struct MountOptions {
    /// Prefix of the source in the mount table; a unique suffix is appended.
    ///
    /// Characters other than letters, digits and `.:/@+_` are replaced by `-`.
    pub name: String,
    /// Whether the mountpoint may be a non-empty directory.
    pub over_full: bool,
    /// Whether other users may access the files.
    pub allow_other: bool,
    /// Number of threads that serve requests, clamped to 1 to 64.
    pub threads: usize,
    /// Read-ahead of the kernel for sequential reads, in bytes.
    ///
    /// A value above the system's default requires write access to `/sys`.
    pub read_ahead_bytes: u32,
    /// Called when a method of the file system panics.
    pub on_panic: Option<PanicHook>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            name: "mesh".into(),
            over_full: false,
            allow_other: false,
            threads: 4,
            read_ahead_bytes: 1 << 20,
            on_panic: None,
        }
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MountOptions")
            .field("name", &self.name)
            .field("over_full", &self.over_full)
            .field("allow_other", &self.allow_other)
            .field("threads", &self.threads)
            .field("read_ahead_bytes", &self.read_ahead_bytes)
            .field("on_panic", &self.on_panic.is_some())
            .finish()
    }
}
