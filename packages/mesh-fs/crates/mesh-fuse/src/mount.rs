//! Files that are shown at a directory.

use crate::abi::{self, notice};
use crate::attach::{self, Attachment, KIND};
use crate::device::Device;
use crate::encode;
use crate::error::MountError;
use crate::file_system::{Answer, FileSystem};
use crate::greeting;
use crate::guardian::{self, Guardian};
use crate::lock;
use crate::options::MountOptions;
use crate::point;
use crate::session::Session;
use crate::worker;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// More threads than this do not help.
const THREADS_MAX: usize = 64;

/// Files that are shown at a directory, until this is closed or dropped, or until this process
/// dies.
///
/// A process forked from this one without running another program has a copy of this that does
/// nothing; while it lives, it keeps the mount from going when this process is killed.
pub struct Mount {
    point: PathBuf,
    source: String,
    session: Arc<Session>,
    /// Through what the kernel is told something.
    device: Mutex<Option<Arc<Device>>>,
    running: Mutex<Option<Running>>,
    /// The process that has mounted.
    owner: u32,
}

/// What ends when a mount is closed.
struct Running {
    attachment: Attachment,
    guardian: Guardian,
    threads: Vec<JoinHandle<()>>,
}

impl Mount {
    /// Shows files at a directory.
    ///
    /// # Errors
    /// See [`MountError`]; where [`MountError::is_forbidden`], no other directory would do.
    pub fn open(
        mountpoint: &Path,
        options: &MountOptions,
        files: Arc<dyn FileSystem>,
    ) -> Result<Self, MountError> {
        let point = point::check(mountpoint, options.over_full)?;
        let source = unique(&options.name)?;
        let told = [KIND, &source].map(OsStr::new);
        let guardian = Guardian::start(guardian::UNMOUNTING, &told)?;
        // If anything fails from here on, the guardian is dropped, and takes away what is there.
        let (device, attachment) = attach::attach(&point, &source, options, &guardian)?;
        let features = greeting::greet(&device, options.read_ahead_bytes)?;
        attachment.read_ahead(options.read_ahead_bytes);
        let session = Session::new(files, options.on_panic.clone(), features)
            .map_err(MountError::system("cannot prepare to answer the kernel"))?;
        let (session, device) = (Arc::new(session), Arc::new(device));
        let running = Running { attachment, guardian, threads: Vec::new() };
        let mount = Self {
            point,
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
        // Where more descriptors are not allowed, one does for all.
        let own = own.map_or_else(|| Arc::clone(device), Arc::new);
        let thread = worker::start(number, &self.session, &own)?;
        if let Some(running) = &mut *lock(&self.running) {
            running.threads.push(thread);
        }
        Ok(())
    }

    /// Where the files are shown.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// What the mount table has as the source. No other mount has the same.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether somebody answers the kernel. When others have unmounted, nobody does; but as long as
    /// files are open that they have unmounted lazily, those are served.
    pub fn is_open(&self) -> bool {
        self.session.is_serving()
    }

    /// Waits until the mount has ended, whoever has ended it.
    pub fn wait(&self) {
        self.session.wait();
    }

    /// Takes the files away, even if some are open: whoever uses those gets errors from now on, and
    /// so does who waits for bytes. Calls of the file system that are under way are waited for.
    /// Closing again does nothing, and does not wait for who closes at the moment.
    ///
    /// # Errors
    /// The files cannot be taken away, because something else is mounted over them, or the right to
    /// unmount was given up. Nobody answers the kernel from now on nevertheless.
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
        // Closed by a call of the file system, its own thread cannot be waited for.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != own) {
            // A panic in it has been reported as any other.
            let _ = thread.join();
        }
        match detached {
            Ok(()) => guardian.dismiss(),
            // It may have rights that we have not any more.
            Err(_) => drop(guardian),
        }
        detached
    }

    /// Tells the kernel that `len` bytes of a file from `offset` on are not what they were, nor its
    /// attributes; with a `len` of 0, all bytes from `offset` on. For a directory, whatever the
    /// range, it is its listing that is not what it was.
    ///
    /// # Deadlock
    /// This and the others that tell the kernel something wait for reads of these bytes that are
    /// parked, and for calls of the file system about these directories: never call them from
    /// within a [`FileSystem`] call, nor while you hold a lock that such a call or the answer to a
    /// read needs.
    ///
    /// # Errors
    /// `ENOTCONN` or the like when the mount has ended. That the kernel does not know the file is
    /// no error.
    pub fn invalidate_node(&self, ino: u64, offset: u64, len: u64) -> Answer<()> {
        let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
        let node = encode::invalid_node(ino, signed(offset), signed(len));
        self.notify(notice::INVALIDATE_NODE, &[&node]).or_else(unless_unknown)
    }

    /// Tells the kernel that a name in a directory does not mean what it did: it is new, is not
    /// there any more, or is another file. The kernel asks again, for the directory's listing too.
    /// Who has the old file open keeps it.
    ///
    /// # Deadlock
    /// See [`Mount::invalidate_node`].
    ///
    /// # Errors
    /// `ENOTCONN` or the like when the mount has ended, `EINVAL` for a name that no file can have.
    /// That the kernel does not know the name is no error.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) -> Answer<()> {
        let entry = encode::invalid_entry(parent, name_len(name)?);
        self.notify(notice::INVALIDATE_ENTRY, &[&entry, name, &[0]]).or_else(unless_unknown)?;
        // For a name that it does not know, the kernel keeps the listing.
        self.invalidate_node(parent, 0, 0)
    }

    /// Tells the kernel that a name is not there any more, and that it was this file: unlike after
    /// [`Mount::invalidate_entry`], who has the file open sees that it has no name any more, and
    /// who is in the directory that it does not exist. If the name is another file, it is only
    /// asked for again.
    ///
    /// # Deadlock
    /// See [`Mount::invalidate_node`].
    ///
    /// # Errors
    /// As [`Mount::invalidate_entry`]; `ENOTEMPTY` for a directory of which the kernel knows files,
    /// and `EBUSY` if something is mounted there.
    pub fn delete_entry(&self, parent: u64, child: u64, name: &[u8]) -> Answer<()> {
        let entry = encode::deleted(parent, child, name_len(name)?);
        self.notify(notice::DELETE, &[&entry, name, &[0]]).or_else(unless_unknown)?;
        self.invalidate_node(parent, 0, 0)
    }

    fn notify(&self, notice: i32, parts: &[&[u8]]) -> Answer<()> {
        self.session.notifying(|| {
            let device = lock(&self.device).clone().ok_or(Errno::NOTCONN)?;
            device.notify(notice, parts)
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.owner == process::id() {
            // Who wants to know closes it.
            let _ = self.close();
        } else if let Some(running) = lock(&self.running).take() {
            // The guardian and the threads are those of the process that has mounted.
            std::mem::forget(running);
        }
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mount")
            .field("point", &self.point)
            .field("source", &self.source)
            .field("is_open", &self.is_open())
            .finish_non_exhaustive()
    }
}

fn unless_unknown(error: Errno) -> Answer<()> {
    if error == Errno::NOENT { Ok(()) } else { Err(error) }
}

fn name_len(name: &[u8]) -> Answer<u32> {
    if name.is_empty() || name.len() > abi::NAME_LEN_MAX || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    u32::try_from(name.len()).map_err(|_| Errno::INVAL)
}

/// What a mount is known by in the mount table, where it can stand as it is.
fn unique(name: &str) -> Result<String, MountError> {
    let mut random = [0; 8];
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(MountError::system("cannot take random numbers"))?;
    let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || ".:/@+_".contains(*letter);
    let plain = name.chars().take(64).map(|letter| if is_plain(&letter) { letter } else { '-' });
    let plain: String = plain.collect();
    Ok(format!("{plain}-{:016x}", u64::from_ne_bytes(random)))
}
