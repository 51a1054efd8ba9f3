//! Message events in files, written as they happen.
//!
//! Whoever keeps a log hands over files that have room, and hears which of them were begun and
//! which are full. A file is whole up to the count that it begins with, whenever the process is
//! killed. What happens while there is no file with room waits in memory.

use super::RECORD_LEN;
use crate::segment::pages::{Pages, Sharing};
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

/// Bytes of a file before its first record; `docs/protocol/events.md` says what is in them.
pub const HEADER_LEN: usize = 64;

const COUNT_AT: usize = 16;
const ENDPOINTS_AT: usize = 24;
const WAITING_AT: usize = 32;

/// What the file of a log is called.
#[derive(Clone, Debug)]
pub struct LogNames {
    /// Its path until it has a record.
    pub coming: PathBuf,
    /// What its path begins with from then on; the time of the first record follows, in
    /// microseconds since the epoch.
    pub prefix: String,
    /// What its path ends with.
    pub suffix: String,
    /// What to add to the time of a record to get nanoseconds since the epoch.
    pub time_base_ns: i64,
}

/// A file with room for records.
#[derive(Debug)]
pub struct LogFile {
    pages: Pages,
    count_max: usize,
    names: LogNames,
}

impl LogFile {
    /// Maps a file of `len` bytes, of which the first [`HEADER_LEN`] are its header.
    ///
    /// All of them must have pages, and must not be taken away before the file is given back.
    pub fn open(file: BorrowedFd<'_>, len: usize, names: LogNames) -> io::Result<Self> {
        let count_max = len.saturating_sub(HEADER_LEN) / RECORD_LEN;
        if count_max == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no room for a record"));
        }
        let pages = Pages::map(file, len, Sharing::Shared)?;
        // So that nobody who sends a message waits for a page.
        pages.own(&(0..len))?;
        Ok(Self { pages, count_max, names })
    }
}

/// A file that has records.
#[derive(Debug)]
pub struct Written {
    file: LogFile,
    path: PathBuf,
    count: usize,
}

impl Written {
    /// Where it is.
    pub fn path(&self) -> &PathBuf {
        &self.path
    }

    /// How much of it was written, in bytes.
    pub fn len(&self) -> usize {
        HEADER_LEN + self.count * RECORD_LEN
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// What has become of a log since somebody has last looked.
#[derive(Debug, Default)]
pub struct LogState {
    /// Files that were begun, in this order.
    pub begun: Vec<PathBuf>,
    /// Files that nothing more comes into.
    pub ended: Vec<Written>,
    /// How many files were not begun yet.
    pub ready: usize,
    /// How much of the file that is written to is used, in bytes; 0 for none.
    pub used: usize,
    /// How long that file is, in bytes.
    pub room: usize,
    /// How many events wait for a file.
    pub waiting: usize,
    /// How many were dropped, because there was neither a file nor room to wait.
    pub dropped: u64,
}

/// Events on their way into files.
#[derive(Debug)]
pub struct EventLog {
    number: u32,
    current: Option<Written>,
    ready: VecDeque<LogFile>,
    waiting: VecDeque<[u8; RECORD_LEN]>,
    waiting_max: usize,
    endpoint_count: usize,
    dropped: u64,
    begun: Vec<PathBuf>,
    ended: Vec<Written>,
}

impl EventLog {
    /// A log without a file.
    pub(super) fn new(number: u32, waiting_max: usize) -> Self {
        Self {
            number,
            current: None,
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_max,
            endpoint_count: 0,
            dropped: 0,
            begun: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Which of the logs it is.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Adds a file, and fills it with what has waited for one.
    pub fn extend(&mut self, file: LogFile) {
        self.ready.push_back(file);
        while let Some(record) = self.waiting.pop_front() {
            if !self.put(&record) {
                self.waiting.push_front(record);
                break;
            }
        }
        self.tell_waiting();
    }

    /// Ends the file that is written to, so that the next event begins another one.
    pub fn turn(&mut self) {
        self.ended.extend(self.current.take());
    }

    /// Says what has become of it. The files that it gives are best dropped where nobody waits.
    pub fn take_state(&mut self) -> LogState {
        let current = self.current.as_ref();
        LogState {
            begun: std::mem::take(&mut self.begun),
            ended: std::mem::take(&mut self.ended),
            ready: self.ready.len(),
            used: current.map_or(0, Written::len),
            room: current.map_or(0, |one| HEADER_LEN + one.file.count_max * RECORD_LEN),
            waiting: self.waiting.len(),
            dropped: std::mem::take(&mut self.dropped),
        }
    }

    /// Writes an event; when there is no file, at the cost of the oldest one that waits for one.
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
            self.tell_waiting();
        }
    }

    /// Says in the file how many endpoints there are: whoever reads it has to know their names.
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
            self.turn();
        }
        if self.current.is_none() {
            let Some(file) = self.ready.pop_front() else { return false };
            self.current = Some(self.begin(file, record));
        }
        let current = self.current.as_mut().expect("it was begun, if there was none");
        let pages = &mut current.file.pages;
        pages.put(HEADER_LEN + current.count * RECORD_LEN, record);
        current.count += 1;
        pages.publish(COUNT_AT, current.count as u64);
        true
    }

    /// Gives a file the name that readers look for.
    fn begin(&mut self, file: LogFile, record: &[u8; RECORD_LEN]) -> Written {
        let (at, _) = record.split_first_chunk::<8>().expect("a record begins with its time");
        let at_ns = i128::from(u64::from_le_bytes(*at)) + i128::from(file.names.time_base_ns);
        let LogNames { coming, prefix, suffix, .. } = &file.names;
        let path = PathBuf::from(format!("{prefix}{}{suffix}", at_ns.max(0) / 1000));
        file.pages.publish(ENDPOINTS_AT, self.endpoint_count as u64);
        // It fails when the folder is gone: then nobody wants to read it.
        let _ = fs::rename(coming, &path);
        self.begun.push(path.clone());
        Written { file, path, count: 0 }
    }

    /// Says in the file that there is more, which is not in a file yet.
    fn tell_waiting(&self) {
        if let Some(current) = &self.current {
            current.file.pages.publish(WAITING_AT, self.waiting.len() as u64);
        }
    }
}
