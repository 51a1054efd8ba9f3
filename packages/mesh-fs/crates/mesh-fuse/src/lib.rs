//! The kernel's side of a file system: mounting, and answering what it asks.
//!
//! Files are shown read-only by way of FUSE, in the kernel's own protocol. What is answered once
//! the kernel keeps, until it is told that it has changed; bytes may be answered late.
//!
//! # Layout
//! - [`FileSystem`] is what others write, with [`ReadReply`] and [`DirectoryReply`] to answer by;
//! - [`Mount`] shows it, as [`MountOptions`] say, and [`MountError`] says why not: `point` looks at
//!   the directory, `attach` mounts with our own rights or through a `deputy`, `table` reads what
//!   is mounted, and a `guardian`, a process of its own, unmounts when we die; `greeting` settles
//!   with the kernel what is spoken;
//! - [`Guardian`], [`check_point`] and [`find_mount`] do for those who mount something else, too;
//! - behind it, `worker` threads receive from a `device`, `decode` and `encode` by the numbers of
//!   `abi`, and have a `server` answer for the one `session` of all; `parked` are the reads that
//!   are not answered yet.

mod abi;
mod attach;
mod decode;
mod deputy;
mod device;
mod directory;
mod encode;
mod error;
mod file_system;
mod greeting;
mod guardian;
mod mount;
mod options;
mod parked;
mod point;
mod reply;
mod server;
mod session;
mod spawn;
mod table;
mod worker;

pub use directory::DirectoryReply;
pub use error::MountError;
pub use file_system::{Answer, Attributes, Entry, FileSystem, Kind, ROOT, Seek, Space};
pub use guardian::Guardian;
pub use mount::Mount;
pub use options::{MountOptions, PanicHook, Panicked};
pub use point::check as check_point;
pub use reply::ReadReply;
pub use rustix::io::Errno;
pub use table::{Mounted, find_mount};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a panic has left half done here is nothing: each lock is held for single steps alone.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
