//! Files that stay open because they are read again and again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many files are kept open.
const OPEN_MAX: usize = 64;

/// Some open files by their numbers; those that were used last.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    /// The last one was used last.
    files: Mutex<VecDeque<(u32, Arc<OwnedFd>)>>,
}

impl OpenFiles {
    /// Reads from a file. When that fails with one that was open before, it is opened again: its
    /// name may lead to another file by now.
    pub(crate) fn with<E: From<io::Error>>(
        &self,
        number: u32,
        open: impl Fn() -> io::Result<OwnedFd>,
        mut read: impl FnMut(&OwnedFd) -> Result<(), E>,
    ) -> Result<(), E> {
        if let Some(file) = self.find(number) {
            if read(&file).is_ok() {
                return Ok(());
            }
            self.lock().retain(|(other, _)| *other != number);
        }
        let file = open()?;
        read(&file)?;
        self.keep(number, Arc::new(file));
        Ok(())
    }

    fn find(&self, number: u32) -> Option<Arc<OwnedFd>> {
        let mut files = self.lock();
        let nth = files.iter().rposition(|(other, _)| *other == number)?;
        let found = files.remove(nth)?;
        let file = Arc::clone(&found.1);
        files.push_back(found);
        Some(file)
    }

    fn keep(&self, number: u32, file: Arc<OwnedFd>) {
        let mut files = self.lock();
        // Another thread may have opened the same file meanwhile.
        files.retain(|(other, _)| *other != number);
        let is_full = files.len() >= OPEN_MAX;
        let oldest = if is_full { files.pop_front() } else { None };
        files.push_back((number, file));
        // It may be closed here, which takes its time on some file systems.
        drop(files);
        drop(oldest);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, Arc<OwnedFd>)>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
