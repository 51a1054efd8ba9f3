//! Mounts of this user's processes that were killed together with their guardians.

use crate::attach::{self, KIND};
use crate::table;
use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::process::getuid;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Timeout for the reply of a mount's server. A slower server is not considered dead, because the
/// kernel itself replies for a dead one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Unmounts mounts of this user that are no longer served by a process.
///
/// Mounts of living processes and of other users are not changed. Mounts that cannot be unmounted
/// are skipped.
pub fn unmount_dead() {
    let mounts = table::find_of_user(KIND, getuid().as_raw()).unwrap_or_default();
    for mount in mounts.iter().filter(|mount| !mount.is_covered && is_dead(&mount.mountpoint)) {
        let _ = attach::unmount(mount);
    }
}

/// Returns whether the process that served a mount has exited.
///
/// The kernel aborts the connection of a server when its last descriptor is closed, and replies to
/// every later request with `ENOTCONN`.
fn is_dead(mountpoint: &Path) -> bool {
    let (sender, receiver) = channel();
    let mountpoint = mountpoint.to_owned();
    // A stopped server never replies; the thread then lives until this process exits.
    let query = move || sender.send(statvfs(&mountpoint).err());
    let started = thread::Builder::new().name("mesh-fs-stale".to_owned()).spawn(query);
    started.is_ok() && receiver.recv_timeout(REPLY_TIMEOUT) == Ok(Some(Errno::NOTCONN))
}
