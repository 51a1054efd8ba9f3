//! Connections within the host: the listener of a process and its address.

use super::Engine;
use super::poller::LISTENER;
use mesh_wire::id::ProcId;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

impl Engine {
    /// Starts to accept connections from processes of this host; the directory must exist.
    ///
    /// # Errors
    /// If the directory cannot be used, or this process already listens.
    pub fn listen(&self) -> io::Result<()> {
        let path = socket_path(&self.dir, self.me);
        // A process that was killed leaves its socket file; this process gets the slot after its
        // death.
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

/// Returns the path at which a process of this host listens.
pub(super) fn socket_path(dir: &Path, proc: ProcId) -> PathBuf {
    dir.join(format!("{}.sock", proc.slot))
}
