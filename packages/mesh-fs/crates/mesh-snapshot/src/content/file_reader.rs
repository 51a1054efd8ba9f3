//! Reading and chunking a file until it does not change during the read.

use crate::content::chunker::CONTENT;
use crate::content::source::Source;
use crate::format::encode::Xattrs;
use crate::tree::attributes::{Extent, Kind};
use crate::walk::file_stat::FileStat;
use mesh_chunks::ChunkId;
use std::io;
use std::ops::Range;

/// Size of a read in bytes. The data stays in the processor cache until it is hashed.
const BUFFER_LEN: usize = 512 << 10;
/// Long ranges are cut near each multiple of this, so that several threads can process them.
const SEGMENT: u64 = 8 << 20;
/// Maximum distance of a cut behind such a multiple.
const CUT_DISTANCE_MAX: u64 = 64 << 10;
/// Number of times a changing file is read before only its unchanged beginning is accepted.
const ATTEMPTS: usize = 4;

/// Read buffer of a thread.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: Vec<u8>,
}

/// Content of a file as it was at one moment.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) stat: FileStat,
    pub(crate) xattrs: Xattrs,
    pub(crate) extents: Vec<Extent>,
    /// Whether the file was unchanged after the read; if false, only its beginning is captured.
    pub(crate) is_whole: bool,
}

/// Reason why a file could not be read.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// The file changed.
    Changed,
    /// The path is not a regular file any more.
    NoFile,
    Failed(io::Error),
}

impl From<io::Error> for ReadFailure {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN] }
    }
}

/// Reads a file, and repeats the read if the file changes.
///
/// After `ATTEMPTS` reads, the file is accepted if the part that existed at the start of a read is
/// the same in a second read.
///
/// # Errors
/// That part changes too, or the file cannot be opened or read.
pub(crate) fn read<S: Source>(
    open: impl Fn() -> io::Result<S>,
    scratch: &mut Scratch,
) -> Result<Content, ReadFailure> {
    for _ in 0..ATTEMPTS {
        let source = open()?;
        match read_once(&source, scratch) {
            Ok((content, after)) if after.file_version == content.stat.file_version => {
                return Ok(content);
            }
            Ok(_) | Err(ReadFailure::Changed) => {}
            Err(error) => return Err(error),
        }
    }
    let source = open()?;
    let (mut content, _) = read_once(&source, scratch)?;
    let again = extents(&source, &content.stat, scratch)?;
    let is_there = source.stat()?.file_version.size >= content.stat.file_version.size;
    content.is_whole = false;
    if again == content.extents && is_there { Ok(content) } else { Err(ReadFailure::Changed) }
}

/// Reads a file, with its metadata before and after the read.
fn read_once(
    source: &impl Source,
    scratch: &mut Scratch,
) -> Result<(Content, FileStat), ReadFailure> {
    let stat = source.stat()?;
    if stat.kind != Kind::File {
        return Err(ReadFailure::NoFile);
    }
    let extents = extents(source, &stat, scratch)?;
    let xattrs = source.xattrs();
    Ok((Content { stat, xattrs, extents, is_whole: true }, source.stat()?))
}

/// Reads a file up to the size in `stat`.
fn extents(
    source: &impl Source,
    stat: &FileStat,
    scratch: &mut Scratch,
) -> Result<Vec<Extent>, ReadFailure> {
    let mut all = Extents::default();
    for range in ranges(source, stat)? {
        for nth in 0..segments(&range) {
            all.push(chunk_segment(source, &range, nth, scratch)?);
        }
    }
    Ok(all.finish(stat.file_version.size))
}

/// Builds the extents of a file from consecutive runs and the holes between them.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    extents: Vec<Extent>,
    end: u64,
}

/// Consecutive chunks without a gap.
#[derive(Debug)]
pub(crate) struct Run {
    start: u64,
    chunks: Vec<Extent>,
}

impl Extents {
    /// Adds a run, which must start at or after the end of the previous one.
    pub(crate) fn push(&mut self, run: Run) {
        let Some(last) = run.chunks.last() else { return };
        self.leave_hole(run.start);
        self.end = last.end;
        if self.extents.is_empty() {
            self.extents = run.chunks;
        } else {
            self.extents.extend(run.chunks);
        }
    }

    /// Returns all extents, with a hole up to `size` if needed.
    pub(crate) fn finish(mut self, size: u64) -> Vec<Extent> {
        self.leave_hole(size);
        self.extents.shrink_to_fit();
        self.extents
    }

    fn leave_hole(&mut self, end: u64) {
        if end > self.end {
            self.extents.push(Extent { end, chunk: None });
            self.end = end;
        }
    }
}

/// Returns the ranges of a file that are not in holes.
///
/// # Errors
/// A system call failed.
pub(crate) fn ranges(source: &impl Source, stat: &FileStat) -> io::Result<Vec<Range<u64>>> {
    let size = stat.file_version.size;
    if size == 0 {
        return Ok(Vec::new());
    }
    if !stat.is_sparse {
        return Ok(std::iter::once(0..size).collect());
    }
    let mut ranges = Vec::new();
    let mut end = 0;
    while end < size {
        let Some(range) = source.data_behind(end)?.filter(|range| range.start < size) else {
            break;
        };
        if range.end <= end {
            return Err(io::Error::other("the file system reported an empty range of data"));
        }
        end = range.end.min(size);
        ranges.push(range.start..end);
    }
    Ok(ranges)
}

/// Number of segments of a range. The last one may be nearly twice as long as the others.
pub(crate) fn segments(range: &Range<u64>) -> u64 {
    ((range.end - range.start) / SEGMENT).max(1)
}

/// Splits one segment of a range into chunks.
///
/// # Errors
/// The file is shorter than the range, or cannot be read.
pub(crate) fn chunk_segment(
    source: &impl Source,
    range: &Range<u64>,
    nth: u64,
    scratch: &mut Scratch,
) -> Result<Run, ReadFailure> {
    let start = cut_point(source, range, nth, scratch)?;
    let end = cut_point(source, range, nth + 1, scratch)?;
    let mut chunks = Vec::new();
    // Range of the buffer that is not processed yet, and its offset in the file.
    let (mut from, mut to, mut at) = (0, 0, start);
    while at < end {
        let missing = end - at - (to - from) as u64;
        if to - from < CONTENT.max() && missing > 0 {
            scratch.buffer.copy_within(from..to, 0);
            (from, to) = (0, to - from);
            let free = &mut scratch.buffer[to..];
            let wanted = free.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            let read = source.read_at(&mut free[..wanted], at + to as u64)?;
            if read == 0 {
                return Err(ReadFailure::Changed);
            }
            to += read;
            continue;
        }
        let len = CONTENT.first_len(&scratch.buffer[from..to]);
        let chunk = ChunkId::of(&scratch.buffer[from..from + len]);
        from += len;
        at += len as u64;
        chunks.push(Extent { end: at, chunk: Some(chunk) });
    }
    Ok(Run { start, chunks })
}

/// Returns the start of a segment: the first content-defined cut point after its multiple. Content
/// that moves within a file is therefore usually split in the same way.
fn cut_point(
    source: &impl Source,
    range: &Range<u64>,
    nth: u64,
    scratch: &mut Scratch,
) -> Result<u64, ReadFailure> {
    if nth == 0 {
        return Ok(range.start);
    }
    if nth >= segments(range) {
        return Ok(range.end);
    }
    let start = range.start + nth * SEGMENT;
    let len = CUT_DISTANCE_MAX.min(range.end - start) as usize;
    let mut filled = 0;
    while filled < len {
        match source.read_at(&mut scratch.buffer[filled..len], start + filled as u64)? {
            0 => return Err(ReadFailure::Changed),
            read => filled += read,
        }
    }
    let found = CONTENT.cut_point(&scratch.buffer[..len]);
    Ok(start + found.unwrap_or(len) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::attributes::Timestamp;
    use crate::walk::file_stat::FileVersion;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A file that changes after each read.
    #[derive(Clone)]
    struct ChangingFile {
        state: Rc<State>,
    }

    struct State {
        content: RefCell<Vec<u8>>,
        changes: Cell<i64>,
        change: RefCell<Box<Change>>,
    }

    /// Changes the content after a read; returns whether it did.
    type Change = dyn FnMut(&mut Vec<u8>) -> bool;

    impl ChangingFile {
        fn new(content: Vec<u8>, change: impl FnMut(&mut Vec<u8>) -> bool + 'static) -> Self {
            let (content, change) = (RefCell::new(content), RefCell::new(Box::new(change) as _));
            Self { state: Rc::new(State { content, changes: Cell::new(0), change }) }
        }

        fn read(&self) -> Result<Content, ReadFailure> {
            read(|| Ok(self.clone()), &mut Scratch::new())
        }

        fn reopened(&self) -> Vec<u8> {
            self.state.content.borrow().clone()
        }
    }

    impl Source for ChangingFile {
        fn stat(&self) -> io::Result<FileStat> {
            let at = Timestamp { s: self.state.changes.get(), ns: 0 };
            let size = self.state.content.borrow().len() as u64;
            Ok(FileStat {
                kind: Kind::File,
                file_version: FileVersion { device: 1, inode: 1, size, modified: at, changed: at },
                permissions: 0o644,
                uid: 0,
                gid: 0,
                has_links: false,
                is_sparse: false,
                device: 0,
            })
        }

        fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
            let mut content = self.state.content.borrow_mut();
            let rest = content.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(into.len());
            into[..len].copy_from_slice(&rest[..len]);
            if (self.state.change.borrow_mut())(&mut content) {
                self.state.changes.set(self.state.changes.get() + 1);
            }
            Ok(len)
        }

        fn data_behind(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
            Ok(Some(offset..u64::MAX))
        }

        fn xattrs(&self) -> Xattrs {
            Xattrs::new()
        }
    }

    /// Returns the extents of unchanging content.
    fn calm(content: &[u8]) -> Vec<Extent> {
        let file = ChangingFile::new(content.to_vec(), |_| false);
        let content = file.read().expect("it does not change");
        assert!(content.is_whole);
        content.extents
    }

    #[test]
    fn a_file_that_changes_twice_is_read_three_times() {
        let mut left = 2;
        let file = ChangingFile::new(vec![1; 20_000], move |content| {
            content[5] += u8::from(left > 0);
            left -= 1;
            left >= 0
        });
        let content = file.read().expect("it is calm in the end");
        assert!(content.is_whole);
        assert_eq!(content.extents, calm(&file.reopened()));
    }

    #[test]
    fn a_growing_file_is_captured_up_to_its_recorded_size() {
        let file = ChangingFile::new(vec![1; 20_000], |content| {
            content.extend([2; 3000]);
            true
        });
        let content = file.read().expect("its beginning stays");
        assert!(!content.is_whole);
        let size = content.stat.file_version.size as usize;
        assert_eq!(content.extents, calm(&file.reopened()[..size]));
    }

    #[test]
    fn a_file_that_keeps_changing_is_refused() {
        let file = ChangingFile::new(vec![1; 20_000], |content| {
            content[7] = content[7].wrapping_add(1);
            true
        });
        assert!(matches!(file.read(), Err(ReadFailure::Changed)));
    }

    #[test]
    fn a_shrinking_file_is_refused_until_it_is_stable() {
        let file = ChangingFile::new(vec![1; 20_000], |content| {
            content.pop();
            true
        });
        assert!(matches!(file.read(), Err(ReadFailure::Changed)));
        let mut left = 1;
        let file = ChangingFile::new(vec![1; 2 << 20], move |content| {
            content.truncate(30_000);
            left -= 1;
            left >= 0
        });
        assert_eq!(file.read().expect("it stays").extents, calm(&[1; 30_000]));
    }

    #[test]
    fn a_file_is_accepted_if_only_its_timestamps_change() {
        let file = ChangingFile::new(vec![1; 20_000], |_| true);
        let content = file.read().expect("its bytes stay");
        assert!(!content.is_whole);
        assert_eq!(content.extents, calm(&[1; 20_000]));
    }

    #[test]
    fn segments_cover_a_file_without_gaps() {
        for len in [1, SEGMENT - 1, SEGMENT, 2 * SEGMENT, 3 * SEGMENT - 1] {
            let count = segments(&(0..len));
            assert_eq!(count, (len / SEGMENT).max(1));
        }
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 56) as u8
        };
        let content: Vec<u8> = std::iter::repeat_with(&mut next).take(17 << 20).collect();
        let extents = calm(&content);
        let mut start = 0;
        for extent in &extents {
            let bytes = &content[start..extent.end as usize];
            assert_eq!(extent.chunk, Some(ChunkId::of(bytes)));
            start = extent.end as usize;
        }
        assert_eq!(start, content.len());
        // Inserting bytes at the front moves all segments, but few chunks change.
        let moved = calm(&[&[9; 1000], &content[..]].concat());
        let chunks = |extents: &[Extent]| -> std::collections::HashSet<_> {
            extents.iter().filter_map(|extent| extent.chunk).map(|chunk| chunk.0).collect()
        };
        let new = chunks(&moved).difference(&chunks(&extents)).count();
        assert!(new < 12, "{new}");
    }
}
