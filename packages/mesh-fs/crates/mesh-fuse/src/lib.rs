//! A FUSE server: mounting a read-only file system, and serving the kernel's requests.
//!
//! It implements the kernel's protocol directly. The kernel caches replies until they are
//! invalidated. Replies to reads may be sent later.
//!
//! # Layout
//! - [`FileSystem`] is implemented by users, which reply with [`ReadReply`] and [`DirectoryReply`];
//! - [`Mount`] mounts it with [`MountOptions`], and reports failures as [`MountError`]:
//!   `mountpoint` checks the directory, `attach` mounts with the privileges of this process or
//!   through `fusermount`, `table` reads the mount table, and a `guardian` process unmounts when
//!   this process dies; `handshake` negotiates with the kernel;
//! - [`GuardedMount`] is a mount that another library serves, and [`unmount_dead`] removes mounts
//!   of processes that were killed together with their guardians;
//! - [`Guardian`], [`check_mountpoint`] and [`find_mount`] are also used by other kinds of mounts;
//! - internally, `worker` threads receive requests from a `device`, `decode` and `encode` messages
//!   with the constants of `abi`, and a `server` replies for the `session`, which all threads
//!   share; `suspended_reads` contains the suspended reads.

mod abi;
mod attach;
mod decode;
mod device;
mod directory;
mod encode;
mod error;
mod file_system;
mod fusermount;
mod guarded_mount;
mod guardian;
mod handshake;
mod mount;
mod mountpoint;
mod options;
mod reply;
mod server;
mod session;
mod spawn;
mod stale_mounts;
mod suspended_reads;
mod table;
mod worker;

pub use directory::DirectoryReply;
pub use error::MountError;
pub use file_system::{Attributes, Entry, FileSystem, FsResult, Kind, ROOT, Seek, Space};
pub use guarded_mount::GuardedMount;
pub use guardian::Guardian;
pub use mount::Mount;
pub use mountpoint::check as check_mountpoint;
pub use options::{MountOptions, PanicHook, Panicked};
pub use reply::ReadReply;
pub use rustix::io::Errno;
pub use stale_mounts::unmount_dead;
pub use table::{Mounted, find_mount};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex and ignores poisoning: no code panics while the data is inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
