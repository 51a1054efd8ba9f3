//! An in-memory file system that is mounted at a temporary folder.

use crate::memory::{Events, MemoryFileSystem};
use mesh_fuse::{Mount, MountError, MountOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout that is long enough even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A mounted in-memory file system.
pub(crate) struct MountedFiles {
    pub(crate) mount: Mount,
    pub(crate) memory: Arc<MemoryFileSystem>,
    pub(crate) events: Events,
    /// Dropped after the mount.
    pub(crate) folder: TempDir,
}

impl MountedFiles {
    /// Mounts the files; prints the reason and returns `None` if this machine does not support it.
    pub(crate) fn new<T>(fill: impl FnOnce(&MemoryFileSystem) -> T) -> Option<Self> {
        Self::with(&MountOptions::default(), fill)
    }

    pub(crate) fn with<T>(
        options: &MountOptions,
        fill: impl FnOnce(&MemoryFileSystem) -> T,
    ) -> Option<Self> {
        let (memory, events) = MemoryFileSystem::new();
        fill(&memory);
        let memory = Arc::new(memory);
        let folder = folder();
        let mount = or_skip(Mount::open(folder.path(), options, Arc::clone(&memory) as _))?;
        Some(Self { mount, memory, events, folder })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("the file can be read")
    }

    /// Returns the sorted names in a folder.
    pub(crate) fn list(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).expect("the folder can be listed");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("each name can be read").file_name().into_string().expect("it is text")
        };
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("there is space for temporary files")
}

/// Returns the mount; prints the reason and returns `None` if this machine does not support it.
pub(crate) fn or_skip(mounted: Result<Mount, MountError>) -> Option<Mount> {
    match mounted {
        Ok(mount) => Some(mount),
        Err(error) if error.is_forbidden() => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Returns whether a line of the mount table contains this text.
pub(crate) fn is_in_table(text: &str) -> bool {
    fs::read_to_string("/proc/self/mountinfo").expect("there is a mount table").contains(text)
}

/// Waits until no line of the mount table contains this text.
pub(crate) fn wait_out_of_table(text: &str) {
    let mut table = File::open("/proc/self/mountinfo").expect("there is a mount table");
    let started = Instant::now();
    let mut content = String::new();
    loop {
        content.clear();
        table.seek(SeekFrom::Start(0)).expect("the table can be read again");
        table.read_to_string(&mut content).expect("the table can be read");
        if !content.contains(text) {
            return;
        }
        assert!(started.elapsed() < LIMIT, "{text} is still in the mount table");
        // The mount table signals `POLLPRI` when it changes.
        let mut watched = [PollFd::new(&table, PollFlags::PRI)];
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut watched, Some(&second)).expect("the table can be watched");
    }
}

/// A child process that is killed on drop.
pub(crate) struct KillOnDrop(pub(crate) Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pseudorandom content that differs at each offset.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}
