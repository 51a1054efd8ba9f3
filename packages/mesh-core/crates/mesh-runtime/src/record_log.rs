//! The log of the messages that the actors of a process receive, in memory-mapped files that
//! outlive the process.
//!
//! A log is a bounded sequence of entries. The newest entries are kept: when the budget is used up,
//! the oldest file is overwritten. Entries that a replay always needs are in a separate file, which
//! is never overwritten. `docs/protocol/recordings.md` specifies the format.

use crate::segment::pages::{Pages, Sharing};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Number of files into which the budget is divided; one of them is for entries that are kept.
const FILES: usize = 8;
/// Length in bytes of the fixed part of an entry.
const HEAD_LEN: usize = 56;
/// Entries start at multiples of this.
const ALIGN: usize = 8;
/// Set in the length of a payload that was not written.
const OMITTED: u64 = 1 << 63;
const KEPT_NAME: &str = "kept";
/// The kind of the last entry of a log that could not be continued.
const STOPPED: u16 = 8;
/// Length in bytes of the longest text of that entry.
const CAUSE_LEN_MAX: usize = 256;
/// Length in bytes that is reserved for that entry in the file of kept entries.
const STOPPED_LEN: usize = HEAD_LEN + CAUSE_LEN_MAX;

/// An entry to write.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its kind, a number that the reader interprets.
    pub kind: u16,
    /// The port of the actor.
    pub actor: u64,
    /// Two values whose meaning depends on the kind.
    pub values: [u64; 2],
    /// Encoded fields.
    pub fields: &'a [u8],
    /// Payloads, at most 65,535.
    pub payloads: &'a [&'a [u8]],
}

/// A file of a log.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    pages: Pages,
    used: usize,
}

/// The log of a process.
#[derive(Debug)]
pub struct RecordLog {
    folder: PathBuf,
    file_len: usize,
    kept: LogFile,
    current: LogFile,
    older: VecDeque<LogFile>,
    entry_count: u64,
    file_count: u64,
    is_stopped: bool,
}

impl RecordLog {
    /// Creates a log in a directory, which must not exist, with files of `len_max` bytes in all.
    pub fn create(folder: &Path, len_max: usize) -> io::Result<Self> {
        fs::DirBuilder::new().mode(0o700).create(folder)?;
        // If the space does not suffice for the log, release the part that was allocated.
        Self::create_files(folder, len_max).inspect_err(|_| drop(fs::remove_dir_all(folder)))
    }

    fn create_files(folder: &Path, len_max: usize) -> io::Result<Self> {
        let file_len = (len_max / FILES).next_multiple_of(ALIGN).max(1 << 12);
        let kept = LogFile::create(folder.join(KEPT_NAME), file_len)?;
        let current = LogFile::create(numbered(folder, 1), file_len)?;
        Ok(Self {
            folder: folder.to_owned(),
            file_len,
            kept,
            current,
            older: VecDeque::new(),
            entry_count: 0,
            file_count: 1,
            is_stopped: false,
        })
    }

    /// Writes an entry. Payloads that do not fit into a file are omitted, the longest first; an
    /// entry whose fields do not fit is dropped.
    ///
    /// An entry that `is_kept` is not evicted later.
    ///
    /// If the log cannot get the file that it needs next, it stops: it ends with an entry that
    /// contains the cause, and this call returns the error. Later calls write nothing and succeed.
    pub fn append(&mut self, entry: &Entry<'_>, is_kept: bool) -> io::Result<()> {
        if self.is_stopped {
            return Ok(());
        }
        let fixed = HEAD_LEN + 8 * entry.payloads.len() + entry.fields.len();
        let capacity =
            if is_kept { self.file_len - STOPPED_LEN - self.kept.used } else { self.file_len };
        let Some(capacity) = capacity.checked_sub(fixed + ALIGN) else { return Ok(()) };
        let is_written = chosen(entry.payloads, capacity);
        let written = entry.payloads.iter().zip(&is_written).filter(|(_, is_in)| **is_in);
        let len = (fixed + written.map(|(payload, _)| payload.len()).sum::<usize>())
            .next_multiple_of(ALIGN);
        if !is_kept && self.current.used + len > self.file_len {
            self.next_file().inspect_err(|error| self.stop(error))?;
        }
        let number = self.entry_count;
        self.entry_count += 1;
        let file = if is_kept { &mut self.kept } else { &mut self.current };
        file.write(entry, number, len, &is_written);
        Ok(())
    }

    /// Writes the last entry.
    fn stop(&mut self, cause: &io::Error) {
        self.is_stopped = true;
        let text = cause.to_string();
        let fields = &text.as_bytes()[..text.len().min(CAUSE_LEN_MAX)];
        let code = cause.raw_os_error().and_then(|code| u64::try_from(code).ok());
        let values = [code.unwrap_or(0), 0];
        let entry = Entry { kind: STOPPED, actor: 0, values, fields, payloads: &[] };
        let len = (HEAD_LEN + fields.len()).next_multiple_of(ALIGN);
        self.kept.write(&entry, self.entry_count, len, &[]);
    }

    /// Continues with an empty file: a new one, or the oldest one if there are enough.
    fn next_file(&mut self) -> io::Result<()> {
        self.file_count += 1;
        let path = numbered(&self.folder, self.file_count);
        let next = if self.older.len() + 2 < FILES {
            LogFile::create(path, self.file_len)?
        } else {
            let mut oldest = self.older.pop_front().expect("FILES is greater than 2");
            // A reader that opened the file earlier sees the end of its entries, or the new
            // entries.
            oldest.pages.publish(0, 0);
            oldest.used = 0;
            fs::rename(&oldest.path, &path)?;
            oldest.path = path;
            oldest
        };
        self.older.push_back(std::mem::replace(&mut self.current, next));
        Ok(())
    }
}

impl LogFile {
    fn create(path: PathBuf, len: usize) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        match mapped(&file, len) {
            Ok(pages) => Ok(Self { path, pages, used: 0 }),
            Err(error) => {
                // A part of the file may have been allocated.
                drop(fs::remove_file(&path));
                Err(error)
            }
        }
    }

    /// Writes an entry of `len` bytes; its length last, so that no reader sees a part of it.
    fn write(&mut self, entry: &Entry<'_>, number: u64, len: usize, is_written: &[bool]) {
        let start = self.used;
        let mut head = [0; HEAD_LEN];
        let payload_count = u16::try_from(entry.payloads.len()).unwrap_or(u16::MAX);
        let fields_len = u32::try_from(entry.fields.len()).unwrap_or(u32::MAX);
        head[8..10].copy_from_slice(&entry.kind.to_le_bytes());
        head[10..12].copy_from_slice(&payload_count.to_le_bytes());
        head[12..16].copy_from_slice(&fields_len.to_le_bytes());
        let numbers = [number, now_ns(), entry.actor, entry.values[0], entry.values[1]];
        for (at, value) in numbers.into_iter().enumerate() {
            head[16 + 8 * at..24 + 8 * at].copy_from_slice(&value.to_le_bytes());
        }
        self.pages.put(start + 8, &head[8..]);
        let mut at = start + HEAD_LEN;
        for (payload, is_in) in entry.payloads.iter().zip(is_written) {
            let length = payload.len() as u64 | if *is_in { 0 } else { OMITTED };
            self.pages.put(at, &length.to_le_bytes());
            at += 8;
        }
        self.pages.put(at, entry.fields);
        at += entry.fields.len();
        for (payload, _) in entry.payloads.iter().zip(is_written).filter(|(_, is_in)| **is_in) {
            self.pages.put(at, payload);
            at += payload.len();
        }
        self.used = start + len;
        if self.used + 8 <= self.pages.len() {
            // The file may contain entries from its previous use.
            self.pages.publish(self.used, 0);
        }
        self.pages.publish(start, len as u64);
    }
}

/// Allocates a new file on the disk and maps it.
fn mapped(file: &File, len: usize) -> io::Result<Pages> {
    // Writing to a page that does not fit on the disk would kill the process.
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len as u64) {
        // Some network file systems cannot allocate without writing.
        Err(Errno::OPNOTSUPP) => write_zeros(file, len)?,
        result => result?,
    }
    let pages = Pages::map(file.as_fd(), len, Sharing::Shared)?;
    // This avoids page faults in the threads of actors.
    pages.populate_write(&(0..len))?;
    Ok(pages)
}

fn write_zeros(mut file: &File, len: usize) -> io::Result<()> {
    let zeros = [0; 1 << 14];
    let mut left = len;
    while left > 0 {
        let count = left.min(zeros.len());
        file.write_all(&zeros[..count])?;
        left -= count;
    }
    // The file system reports that it is full no later than here.
    file.sync_data()
}

/// Decides which payloads are written if at most `capacity` bytes fit.
fn chosen(payloads: &[&[u8]], capacity: usize) -> Vec<bool> {
    let mut is_written = vec![true; payloads.len()];
    let mut total: usize = payloads.iter().map(|payload| payload.len()).sum();
    while total > capacity {
        let longest = (0..payloads.len()).filter(|at| is_written[*at]);
        let Some(longest) = longest.max_by_key(|at| payloads[*at].len()) else { break };
        is_written[longest] = false;
        total -= payloads[longest].len();
    }
    is_written
}

fn numbered(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:012}"))
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, Entry, FILES, HEAD_LEN, OMITTED, RecordLog, STOPPED, write_zeros};
    use std::fs;
    use std::path::{Path, PathBuf};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mesh-{}-{name}", std::process::id()));
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Returns the numbers of the entries of a file, and the lengths of their first payloads.
    fn entries(file: &Path) -> Vec<(u64, u64)> {
        let bytes = fs::read(file).expect("the file exists");
        let mut found = Vec::new();
        let mut at = 0;
        while at + HEAD_LEN <= bytes.len() {
            let len = word(&bytes, at) as usize;
            if len == 0 {
                break;
            }
            assert_eq!(len % ALIGN, 0);
            found.push((word(&bytes, at + 16), word(&bytes, at + HEAD_LEN)));
            at += len;
        }
        found
    }

    fn all(folder: &Path) -> Vec<(u64, u64)> {
        let files = fs::read_dir(folder).expect("the folder exists");
        let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        paths.sort();
        let mut found: Vec<_> = paths.iter().flat_map(|path| entries(path)).collect();
        found.sort_unstable();
        found
    }

    fn entry<'a>(payloads: &'a [&'a [u8]]) -> Entry<'a> {
        Entry { kind: 2, actor: 7, values: [1, 2], fields: b"step", payloads }
    }

    #[test]
    fn the_newest_and_the_kept_entries_remain() {
        let folder = Folder::new("newest");
        let mut log = RecordLog::create(&folder.0, FILES << 12).expect("a log");
        let payload = [1_u8; 1000];
        log.append(&entry(&[&payload]), true).expect("there is space");
        for _ in 0..200 {
            log.append(&entry(&[&payload]), false).expect("there is space");
        }
        let numbers: Vec<u64> = all(&folder.0).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers[0], 0);
        assert!(numbers.len() > 3 * (FILES - 2), "{numbers:?}");
        assert!(numbers[1..].windows(2).all(|pair| pair[0] + 1 == pair[1]), "{numbers:?}");
        assert_eq!(numbers.last(), Some(&200));
    }

    #[test]
    fn a_payload_that_does_not_fit_is_replaced_by_its_length() {
        let folder = Folder::new("long");
        let mut log = RecordLog::create(&folder.0, FILES << 12).expect("a log");
        let (short, long) = ([1_u8; 10], [2_u8; 5000]);
        log.append(&entry(&[&long, &short]), false).expect("there is space");
        log.append(&entry(&[&short]), false).expect("there is space");
        assert_eq!(all(&folder.0), [(0, 5000 | OMITTED), (1, 10)]);
    }

    #[test]
    fn an_entry_of_any_length_can_be_appended() {
        let folder = Folder::new("lengths");
        let mut log = RecordLog::create(&folder.0, FILES << 12).expect("a log");
        let payload = [3_u8; 4100];
        for len in 3900..4100 {
            log.append(&entry(&[&payload[..len]]), false).expect("there is space");
        }
        let numbers: Vec<u64> = all(&folder.0).into_iter().map(|(number, _)| number).collect();
        assert_eq!(numbers.last(), Some(&199));
    }

    /// Returns the kind and the fields of the last entry of a file without payloads.
    fn last_of(file: &Path) -> (u16, String) {
        let bytes = fs::read(file).expect("the file exists");
        let mut at = 0;
        let mut last = 0;
        while at + HEAD_LEN <= bytes.len() && word(&bytes, at) != 0 {
            last = at;
            at += word(&bytes, at) as usize;
        }
        let head = word(&bytes, last + 8);
        let fields = &bytes[last + HEAD_LEN..][..(head >> 32) as usize];
        (head as u16, String::from_utf8_lossy(fields).into_owned())
    }

    #[test]
    fn a_log_that_cannot_grow_stops_and_records_the_cause() {
        let folder = Folder::new("stops");
        let mut log = RecordLog::create(&folder.0, FILES << 12).expect("a log");
        // The kept entries leave space for the final one.
        for _ in 0..200 {
            log.append(&entry(&[]), true).expect("there is space");
        }
        // The name of the next file is taken.
        fs::write(folder.0.join("000000000002"), b"").expect("a file");
        let payload = [1_u8; 1000];
        let results: Vec<bool> =
            (0..9).map(|_| log.append(&entry(&[&payload]), false).is_ok()).collect();
        assert_eq!(results.iter().filter(|is_ok| !**is_ok).count(), 1, "{results:?}");
        let (kind, cause) = last_of(&folder.0.join("kept"));
        assert_eq!(kind, STOPPED);
        assert!(cause.contains("exists"), "{cause}");
        let before = all(&folder.0).len();
        log.append(&entry(&[]), true).expect("it is ignored");
        assert_eq!(all(&folder.0).len(), before);
    }

    #[test]
    fn a_file_is_filled_with_zeros_if_it_cannot_be_allocated() {
        let folder = Folder::new("zeros");
        fs::create_dir(&folder.0).expect("a folder");
        let path = folder.0.join("file");
        write_zeros(&fs::File::create(&path).expect("a file"), 40_000).expect("there is space");
        assert_eq!(fs::read(&path).expect("the file exists"), vec![0; 40_000]);
    }
}
