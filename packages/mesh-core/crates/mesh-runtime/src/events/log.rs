//! Message events in files, written as they happen.
//!
//! The owner of a log provides files with free space, and is notified which of them were started
//! and which are full. A file is valid up to the count in its header, whenever the process is
//! killed. Events that happen while no file has free space wait in memory.

use super::RECORD_LEN;
use crate::segment::pages::{Pages, Sharing};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// Length in bytes of a file header; `docs/protocol/events.md` specifies its fields.
pub const HEADER_LEN: usize = 64;

const COUNT_AT: usize = 16;
const ENDPOINTS_AT: usize = 24;
const WAITING_AT: usize = 32;

/// The names of a log file.
#[derive(Clone, Debug)]
pub struct LogNames {
    /// Its path until it contains a record.
    pub initial_path: PathBuf,
    /// The prefix of its path from then on.
    ///
    /// The time of the first record follows, in microseconds since the epoch.
    pub prefix: String,
    /// The suffix of its path.
    pub suffix: String,
    /// Offset from the time of a record to nanoseconds since the epoch.
    pub time_base_ns: i64,
}

/// A file with space for records.
#[derive(Debug)]
pub struct LogFile {
    pages: Pages,
    count_max: usize,
    names: LogNames,
}

impl LogFile {
    /// Maps a file of `len` bytes, of which the first [`HEADER_LEN`] are its header.
    ///
    /// All of its blocks must be allocated, and must not be released before the file is returned.
    pub fn open(file: BorrowedFd<'_>, len: usize, names: LogNames) -> io::Result<Self> {
        let count_max = len.saturating_sub(HEADER_LEN) / RECORD_LEN;
        if count_max == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is too small"));
        }
        let pages = Pages::map(file, len, Sharing::Shared)?;
        // This avoids a page fault in a thread that sends a message.
        pages.populate_write(&(0..len))?;
        Ok(Self { pages, count_max, names })
    }
}

/// A file with records.
#[derive(Debug)]
pub struct WrittenFile {
    file: LogFile,
    path: PathBuf,
    count: usize,
}

impl WrittenFile {
    /// Returns the path of the file.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Returns the number of bytes that were written.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.count * RECORD_LEN
    }

    /// Whether no record was written.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Changes to a log since the last query, and its current state.
#[derive(Debug, Default)]
pub struct LogState {
    /// Files that were started, in this order.
    pub started: Vec<PathBuf>,
    /// Files that receive no more records.
    pub completed: Vec<WrittenFile>,
    /// Number of files that were not started yet.
    pub ready: usize,
    /// Bytes used in the current file; 0 without one.
    pub used: usize,
    /// Length in bytes of the current file.
    pub capacity: usize,
    /// Number of events that wait for a file.
    pub waiting: usize,
    /// Number of events that were dropped because neither a file nor the queue had space.
    pub dropped: u64,
}

/// The writer of one log.
#[derive(Debug)]
pub struct EventLog {
    number: u32,
    current: Option<WrittenFile>,
    ready: VecDeque<LogFile>,
    waiting: VecDeque<[u8; RECORD_LEN]>,
    waiting_max: usize,
    endpoint_count: usize,
    dropped: u64,
    started: Vec<PathBuf>,
    completed: Vec<WrittenFile>,
}

impl EventLog {
    /// Creates a log without a file.
    pub(super) fn new(number: u32, waiting_max: usize) -> Self {
        Self {
            number,
            current: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_max,
            endpoint_count: 0,
            dropped: 0,
            started: Vec::new(),
            completed: Vec::new(),
        }
    }

    /// Returns the number of this log.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds a file, and fills it with the events that have waited for one.
    pub fn add_file(&mut self, file: LogFile) {
        self.ready.push_back(file);
        while let Some(record) = self.waiting.pop_front() {
            if !self.put(&record) {
                self.waiting.push_front(record);
                break;
            }
        }
        self.publish_waiting();
    }

    /// Ends the current file, so that the next event starts another one.
    pub fn rotate(&mut self) {
        self.completed.extend(self.current.take());
    }

    /// Returns the changes since the last call, and the current state.
    ///
    /// The caller should drop the returned files where no thread waits for it.
    pub fn take_state(&mut self) -> LogState {
        let current = self.current.as_ref();
        LogState {
            started: std::mem::take(&mut self.started),
            completed: std::mem::take(&mut self.completed),
            ready: self.ready.len(),
            used: current.map_or(0, WrittenFile::len),
            capacity: current.map_or(0, |one| HEADER_LEN + one.file.count_max * RECORD_LEN),
            waiting: self.waiting.len(),
            dropped: std::mem::take(&mut self.dropped),
        }
    }

    /// Writes an event.
    ///
    /// Without a file, the event is queued, and a full queue drops its oldest event.
    pub(super) fn write(&mut self, record: &[u8; RECORD_LEN]) {
        if self.waiting.is_empty() && self.put(record) {
            return;
        }
        if self.waiting.len() >= self.waiting_max {
            self.waiting.pop_front();
            self.dropped += 1;
        }
        self.waiting.push_back(*record);
        if self.waiting.len() == 1 {
            self.publish_waiting();
        }
    }

    /// Publishes the number of endpoints in the file: readers have to know their names.
    pub(super) fn note_endpoints(&mut self, count: usize) {
        self.endpoint_count = count;
        if let Some(current) = &self.current {
            current.file.pages.publish(ENDPOINTS_AT, count as u64);
        }
    }

    fn put(&mut self, record: &[u8; RECORD_LEN]) -> bool {
        if self.current.as_ref().is_some_and(|one| one.count == one.file.count_max) {
            if self.ready.is_empty() {
                return false;
            }
            self.rotate();
        }
        if self.current.is_none() {
            let Some(file) = self.ready.pop_front() else { return false };
            self.current = Some(self.start_file(file, record));
        }
        let current = self.current.as_mut().expect("it was begun, if there was none");
        let pages = &mut current.file.pages;
        pages.put(HEADER_LEN + current.count * RECORD_LEN, record);
        current.count += 1;
        pages.publish(COUNT_AT, current.count as u64);
        true
    }

    /// Renames a file to the name that readers look for.
    fn start_file(&mut self, file: LogFile, record: &[u8; RECORD_LEN]) -> WrittenFile {
        let (at, _) = record.split_first_chunk::<8>().expect("a record begins with its time");
        let at_ns = i128::from(u64::from_le_bytes(*at)) + i128::from(file.names.time_base_ns);
        let LogNames { initial_path, prefix, suffix, .. } = &file.names;
        let path = PathBuf::from(format!("{prefix}{}{suffix}", at_ns.max(0) / 1000));
        file.pages.publish(ENDPOINTS_AT, self.endpoint_count as u64);
        // This fails if the directory was removed; then no reader exists either.
        let _ = fs::rename(initial_path, &path);
        self.started.push(path.clone());
        WrittenFile { file, path, count: 0 }
    }

    /// Publishes in the file the number of events that are not in a file yet.
    fn publish_waiting(&self) {
        if let Some(current) = &self.current {
            current.file.pages.publish(WAITING_AT, self.waiting.len() as u64);
        }
    }
}
