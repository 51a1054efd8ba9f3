//! A mounted file system.

use crate::abi::{self, notice};
use crate::attach::{self, Attachment};
use crate::device::Device;
use crate::encode;
use crate::error::MountError;
use crate::file_system::{FileSystem, FsResult};
use crate::guardian::Guardian;
use crate::handshake;
use crate::lock;
use crate::mountpoint;
use crate::options::MountOptions;
use crate::session::Session;
use crate::worker;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Maximum number of threads; more of them are not faster.
const THREADS_MAX: usize = 64;

/// A mounted file system, until it is closed or dropped, or this process dies.
///
/// A forked child process has a copy that does nothing. While such a child exists, the mount is not
/// removed if this process is killed.
pub struct Mount {
    mountpoint: PathBuf,
    source: String,
    session: Arc<Session>,
    /// Device for notifications to the kernel.
    device: Mutex<Option<Arc<Device>>>,
    running: Mutex<Option<Running>>,
    /// Process that has mounted it.
    owner: u32,
}

/// Parts that end when a mount is closed.
struct Running {
    attachment: Attachment,
    guardian: Guardian,
    threads: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Mounts a file system at a directory.
    ///
    /// # Errors
    /// See [`MountError`]. If [`MountError::is_forbidden`] is true, no other directory would work.
    pub fn open(
        mountpoint: &Path,
        options: &MountOptions,
        files: Arc<dyn FileSystem>,
    ) -> Result<Self, MountError> {
        let mountpoint = mountpoint::check(mountpoint, options.over_full)?;
        let attachment = Attachment::unique(&options.name)?;
        let source = attachment.source().to_owned();
        let guardian = Guardian::of_mount(&source)?;
        // On an error from here on, the guardian is dropped and unmounts.
        let device = attach::attach(&mountpoint, &attachment, options, &guardian)?;
        let features = handshake::negotiate(&device, options.read_ahead_bytes)?;
        attachment.set_read_ahead(options.read_ahead_bytes);
        let session = Session::new(files, options.on_panic.clone(), features)
            .map_err(MountError::system("cannot prepare to answer the kernel"))?;
        let (session, device) = (Arc::new(session), Arc::new(device));
        let running = Running { attachment, guardian, threads: Vec::new() };
        let mount = Self {
            mountpoint,
            source,
            session,
            device: Mutex::new(Some(Arc::clone(&device))),
            running: Mutex::new(Some(running)),
            owner: process::id(),
        };
        for number in 0..options.threads.clamp(1, THREADS_MAX) {
            mount.start(number, &device)?;
        }
        Ok(mount)
    }

    fn start(&self, number: usize, device: &Arc<Device>) -> Result<(), MountError> {
        let own = if number == 0 { None } else { device.clone_descriptor().ok() };
        // If no more descriptors can be opened, the threads share one.
        let own = own.map_or_else(|| Arc::clone(device), Arc::new);
        let thread = worker::start(number, &self.session, &own)?;
        if let Some(running) = &mut *lock(&self.running) {
            running.threads.push(thread);
        }
        Ok(())
    }

    /// The mountpoint.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Source in the mount table, which is unique.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns whether the kernel's requests are served.
    ///
    /// This is false after someone else has unmounted it. After a lazy unmount, requests are served
    /// as long as files are open.
    pub fn is_open(&self) -> bool {
        self.session.is_serving()
    }

    /// Waits until the mount has ended for any reason.
    pub fn wait(&self) {
        self.session.wait();
    }

    /// Unmounts the file system, even if its files are open.
    ///
    /// Further accesses to open files fail, as do suspended reads. Waits for running calls of the
    /// file system. Another call does nothing and does not wait for a concurrent one.
    ///
    /// # Errors
    /// The unmount failed because something else is mounted over it, or because this process has
    /// dropped the required privileges. The kernel's requests are not served any more even then.
    pub fn close(&self) -> Result<(), MountError> {
        if self.owner != process::id() {
            return Ok(());
        }
        let Some(running) = lock(&self.running).take() else { return Ok(()) };
        let Running { attachment, guardian, threads } = running;
        let detached = attachment.detach();
        self.session.stop();
        lock(&self.device).take();
        let own = thread::current().id();
        // A file system that closes its mount within a call cannot wait for its own thread.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // Ignore the result: panics have been reported by the hook.
            let _ = thread.join();
        }
        match detached {
            Ok(()) => guardian.dismiss(),
            // On drop, the guardian tries to unmount; it may have more privileges.
            Err(_) => drop(guardian),
        }
        detached
    }

    /// Invalidates a range of a file, and its attributes, in the kernel's cache.
    ///
    /// If `len` is 0, the range extends to the end of the file. For a directory, its listing is
    /// invalidated for any range.
    ///
    /// # Deadlock
    /// This method and the other notifications wait for suspended reads of the range and for
    /// running calls of the file system for the directory. Do not call them from within a
    /// [`FileSystem`] method, nor while holding a lock that such a method or the reply to a read
    /// needs.
    ///
    /// # Errors
    /// `ENOTCONN` or a similar error if the mount has ended. It is not an error if the kernel does
    /// not know the file.
    pub fn invalidate_node(&self, ino: u64, offset: u64, len: u64) -> FsResult<()> {
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let node = encode::invalid_node(ino, signed(offset), signed(len));
        self.notify(notice::INVALIDATE_NODE, &[&node]).or_else(ignore_not_found)
    }

    /// Invalidates a name in a directory that was added or removed, or that refers to another file.
    ///
    /// The kernel repeats the lookup, and also the listing of the directory. Processes that have
    /// the old file open keep it.
    ///
    /// # Deadlock
    /// See [`Mount::invalidate_node`].
    ///
    /// # Errors
    /// `ENOTCONN` or a similar error if the mount has ended; `EINVAL` for an invalid name. It is
    /// not an error if the kernel does not know the name.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let entry = encode::invalid_entry(parent, name_len(name)?);
        self.notify(notice::INVALIDATE_ENTRY, &[&entry, name, &[0]]).or_else(ignore_not_found)?;
        // If the kernel does not know the name, it does not invalidate the listing itself.
        self.invalidate_node(parent, 0, 0)
    }

    /// Notifies the kernel that a name was removed, and that it referred to this file.
    ///
    /// In contrast to [`Mount::invalidate_entry`], processes that have the file open observe that
    /// it has no name any more, and processes whose working directory it is observe that the
    /// directory does not exist any more. If the name refers to another file, the kernel only
    /// repeats the lookup.
    ///
    /// # Deadlock
    /// See [`Mount::invalidate_node`].
    ///
    /// # Errors
    /// The same as for [`Mount::invalidate_entry`]; `ENOTEMPTY` for a directory in which the kernel
    /// knows files, and `EBUSY` if something is mounted there.
    pub fn delete_entry(&self, parent: u64, child: u64, name: &[u8]) -> FsResult<()> {
        let entry = encode::deleted(parent, child, name_len(name)?);
        self.notify(notice::DELETE, &[&entry, name, &[0]]).or_else(ignore_not_found)?;
        self.invalidate_node(parent, 0, 0)
    }

    fn notify(&self, notice: i32, parts: &[&[u8]]) -> FsResult<()> {
        self.session.notifying(|| {
            let device = lock(&self.device).clone().ok_or(Errno::NOTCONN)?;
            device.notify(notice, parts)
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.owner == process::id() {
            // Call `close` to handle errors.
            let _ = self.close();
        } else if let Some(running) = lock(&self.running).take() {
            // The guardian and the threads belong to the process that has mounted.
            std::mem::forget(running);
        }
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mount")
            .field("mountpoint", &self.mountpoint)
            .field("source", &self.source)
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

fn ignore_not_found(error: Errno) -> FsResult<()> {
    if error == Errno::NOENT { Ok(()) } else { Err(error) }
}

fn name_len(name: &[u8]) -> FsResult<u32> {
    if name.is_empty() || name.len() > abi::NAME_LEN_MAX || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    u32::try_from(name.len()).map_err(|_| Errno::INVAL)
}
