//! Cache of open files that are read repeatedly.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of files that are kept open.
const OPEN_MAX: usize = 64;

/// The most recently used files, by number.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    /// Most recently used last.
    files: Mutex<VecDeque<(u32, Arc<OwnedFd>)>>,
}

impl OpenFiles {
    /// Reads from a file. If this fails with a cached descriptor, opens the file again and retries:
    /// its name may refer to another file now.
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
        // Another thread may have opened the same file.
        files.retain(|(other, _)| *other != number);
        let is_full = files.len() >= OPEN_MAX;
        let oldest = if is_full { files.pop_front() } else { None };
        files.push_back((number, file));
        // Closing a file may be slow on some file systems, so do it without the lock.
        drop(files);
        drop(oldest);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u32, Arc<OwnedFd>)>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
