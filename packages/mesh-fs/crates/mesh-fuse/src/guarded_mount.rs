//! Mounts that another library makes and serves.

use crate::attach::Attachment;
use crate::error::MountError;
use crate::guardian::Guardian;
use crate::lock;
use std::sync::Mutex;

/// A mount that another library makes and serves, and that a guardian unmounts when this process
/// dies.
///
/// The file system type must be `fuse.mesh`.
#[derive(Debug)]
pub struct GuardedMount {
    attachment: Attachment,
    guardian: Mutex<Option<Guardian>>,
}

impl GuardedMount {
    /// Starts the guardian, before the library mounts with the unique [`source`](Self::source),
    /// which starts with `name`.
    ///
    /// # Errors
    /// [`MountError::Unguarded`] and [`MountError::System`]: the guardian cannot be started.
    pub fn prepare(name: &str) -> Result<Self, MountError> {
        let attachment = Attachment::unique(name)?;
        let guardian = Mutex::new(Some(Guardian::of_mount(attachment.source())?));
        Ok(Self { attachment, guardian })
    }

    /// Source in the mount table, which is unique.
    pub fn source(&self) -> &str {
        self.attachment.source()
    }

    /// Sets the read-ahead size of the kernel, if this process may do so.
    pub fn set_read_ahead(&self, bytes: u32) {
        self.attachment.set_read_ahead(bytes);
    }

    /// Unmounts it, even if its files are open. The guardian stays until `dismiss`.
    ///
    /// # Errors
    /// Something else is mounted over it, or this process has dropped the required privileges.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.attachment.detach()
    }

    /// Ends the guardian without any action. Nothing may be mounted any more.
    pub fn dismiss(&self) {
        if let Some(guardian) = lock(&self.guardian).take() {
            guardian.dismiss();
        }
    }
}

impl Drop for GuardedMount {
    fn drop(&mut self) {
        // The guardian acts when this process exits, and not when a forked child drops its copy.
        std::mem::forget(lock(&self.guardian).take());
    }
}
