//! Links within the host: where its processes find each other.

use super::Engine;
use super::poller::LISTENER;
use mesh_wire::id::ProcId;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

impl Engine {
    /// Lets processes of this host call from now on; its directory has to be there.
    ///
    /// # Errors
    /// When the directory cannot be used, or this process listens already.
    pub fn listen(&self) -> io::Result<()> {
        let path = socket_path(&self.dir, self.me);
        // A process that was killed leaves its socket behind; we take its slot once it is dead.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        self.listener.set(listener).map_err(|_| io::ErrorKind::AlreadyExists)?;
        match self.listener.get() {
            Some(listener) => self.io.add(listener, LISTENER),
            None => Ok(()),
        }
    }
}

/// Where a process of this host listens.
pub(super) fn socket_path(dir: &Path, proc: ProcId) -> PathBuf {
    dir.join(format!("{}.sock", proc.slot))
}
