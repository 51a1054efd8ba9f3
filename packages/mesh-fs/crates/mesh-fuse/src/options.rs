//! How files are to be mounted.

use std::fmt;
use std::sync::Arc;

/// What is told when a call of a file system panics.
pub type PanicHook = Arc<dyn Fn(&Panicked) + Send + Sync>;

/// A call of a file system that panicked, and was answered `EIO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked {
    /// Which method it was.
    pub call: &'static str,
    /// What the panic said.
    pub message: String,
}

/// How files are to be mounted. They are always mounted so that they can only be read, with neither
/// devices nor programs that take others' rights, and the kernel checks permissions.
#[derive(Clone)]
pub struct MountOptions {
    /// What the source in the mount table begins with; behind it comes what makes it unique.
    /// Characters beyond letters, digits and `.:/@+_` become `-`.
    pub name: String,
    /// Mount over a directory that is not empty.
    pub over_full: bool,
    /// Let other users see the files too.
    pub allow_other: bool,
    /// How many threads answer; at least 1, at most 64.
    pub threads: usize,
    /// How far the kernel reads ahead of who reads one byte after the other. Beyond what is usual
    /// for the machine this has an effect only where we may write below `/sys`.
    pub read_ahead_bytes: u32,
    /// Who is told when a call of the file system panics.
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
