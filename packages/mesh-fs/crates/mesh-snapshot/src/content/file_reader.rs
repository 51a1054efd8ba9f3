//! The content of a file in chunks, read until it stays as it is.

use crate::content::chunker::CONTENT;
use crate::content::source::Source;
use crate::format::encode::Xattrs;
use crate::tree::attributes::{Extent, Kind};
use crate::walk::file_stat::Look;
use mesh_chunks::ChunkId;
use std::io;
use std::ops::Range;

/// Bytes that are read at once: as many as stay near the processor until they are hashed.
const BUFFER_LEN: usize = 512 << 10;
/// Long runs of bytes are cut at about each multiple of this, so that several threads may cut.
const SEGMENT: u64 = 8 << 20;
/// How far behind such a multiple the cut may be.
const MARK_MAX: u64 = 64 << 10;
/// How often a file that changes is read before it is taken as far as it stays.
const ATTEMPTS: usize = 4;

/// What a thread reads into.
#[derive(Debug)]
pub(crate) struct Scratch {
    buffer: Vec<u8>,
}

/// A file as it was for a moment.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) look: Look,
    pub(crate) xattrs: Xattrs,
    pub(crate) extents: Vec<Extent>,
    /// Whether it was the same before and after its reading; else more was added meanwhile.
    pub(crate) is_whole: bool,
}

/// Why there is no content.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// The file changed.
    Changed,
    /// It is something else than a file now.
    NoFile,
    Failed(io::Error),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Scratch {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_LEN] }
    }
}

/// Reads a file: again, if it changes, and at last only what it had at the beginning, twice.
///
/// # Errors
/// It does not even keep that, or cannot be opened or read.
pub(crate) fn read<S: Source>(
    open: impl Fn() -> io::Result<S>,
    scratch: &mut Scratch,
) -> Result<Content, Obstacle> {
    for _ in 0..ATTEMPTS {
        let source = open()?;
        match read_once(&source, scratch) {
            Ok((content, after)) if after.fence == content.look.fence => return Ok(content),
            Ok(_) | Err(Obstacle::Changed) => {}
            Err(error) => return Err(error),
        }
    }
    let source = open()?;
    let (mut content, _) = read_once(&source, scratch)?;
    let again = extents(&source, &content.look, scratch)?;
    let is_there = source.look()?.fence.size >= content.look.fence.size;
    content.is_whole = false;
    if again == content.extents && is_there { Ok(content) } else { Err(Obstacle::Changed) }
}

/// Reads a file and looks at it before and afterwards.
fn read_once(source: &impl Source, scratch: &mut Scratch) -> Result<(Content, Look), Obstacle> {
    let look = source.look()?;
    if look.kind != Kind::File {
        return Err(Obstacle::NoFile);
    }
    let extents = extents(source, &look, scratch)?;
    let xattrs = source.xattrs();
    Ok((Content { look, xattrs, extents, is_whole: true }, source.look()?))
}

/// Reads as much of a file as it had when it was looked at.
fn extents(
    source: &impl Source,
    look: &Look,
    scratch: &mut Scratch,
) -> Result<Vec<Extent>, Obstacle> {
    let mut all = Extents::default();
    for range in ranges(source, look)? {
        for nth in 0..segments(&range) {
            all.push(cut(source, &range, nth, scratch)?);
        }
    }
    Ok(all.finish(look.fence.size))
}

/// Pieces of a file behind each other, with the holes between them.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    extents: Vec<Extent>,
    end: u64,
}

/// Chunks without a gap.
#[derive(Debug)]
pub(crate) struct Run {
    start: u64,
    chunks: Vec<Extent>,
}

impl Extents {
    /// Adds a run; it is behind those that were added before.
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

    /// All of them, with a hole to the end.
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

/// The bytes of a file that are in no hole.
///
/// # Errors
/// The system does not say.
pub(crate) fn ranges(source: &impl Source, look: &Look) -> io::Result<Vec<Range<u64>>> {
    let size = look.fence.size;
    if size == 0 {
        return Ok(Vec::new());
    }
    if !look.is_sparse {
        return Ok(std::iter::once(0..size).collect());
    }
    let mut ranges = Vec::new();
    let mut end = 0;
    while end < size {
        let Some(range) = source.data_behind(end)?.filter(|range| range.start < size) else {
            break;
        };
        if range.end <= end {
            return Err(io::Error::other("the file system lists no end of data"));
        }
        end = range.end.min(size);
        ranges.push(range.start..end);
    }
    Ok(ranges)
}

/// How many segments some bytes have. The last one may be nearly twice as long as the others.
pub(crate) fn segments(range: &Range<u64>) -> u64 {
    ((range.end - range.start) / SEGMENT).max(1)
}

/// Cuts one segment of the bytes of a file.
///
/// # Errors
/// The file is shorter, or it cannot be read.
pub(crate) fn cut(
    source: &impl Source,
    range: &Range<u64>,
    nth: u64,
    scratch: &mut Scratch,
) -> Result<Run, Obstacle> {
    let start = mark(source, range, nth, scratch)?;
    let end = mark(source, range, nth + 1, scratch)?;
    let mut chunks = Vec::new();
    // The bytes of the buffer that are not cut yet, and where they are in the file.
    let (mut from, mut to, mut at) = (0, 0, start);
    while at < end {
        let missing = end - at - (to - from) as u64;
        if to - from < CONTENT.max() && missing > 0 {
            scratch.buffer.copy_within(from..to, 0);
            (from, to) = (0, to - from);
            let room = &mut scratch.buffer[to..];
            let wanted = room.len().min(usize::try_from(missing).unwrap_or(usize::MAX));
            let read = source.read_at(&mut room[..wanted], at + to as u64)?;
            if read == 0 {
                return Err(Obstacle::Changed);
            }
            to += read;
            continue;
        }
        let len = CONTENT.first(&scratch.buffer[from..to]);
        let chunk = ChunkId::of(&scratch.buffer[from..from + len]);
        from += len;
        at += len as u64;
        chunks.push(Extent { end: at, chunk: Some(chunk) });
    }
    Ok(Run { start, chunks })
}

/// Where a segment begins: behind its multiple, where the content is fit to be cut. What is moved
/// within a file is therefore cut as before, mostly.
fn mark(
    source: &impl Source,
    range: &Range<u64>,
    nth: u64,
    scratch: &mut Scratch,
) -> Result<u64, Obstacle> {
    if nth == 0 {
        return Ok(range.start);
    }
    if nth >= segments(range) {
        return Ok(range.end);
    }
    let start = range.start + nth * SEGMENT;
    let len = MARK_MAX.min(range.end - start) as usize;
    let mut filled = 0;
    while filled < len {
        match source.read_at(&mut scratch.buffer[filled..len], start + filled as u64)? {
            0 => return Err(Obstacle::Changed),
            read => filled += read,
        }
    }
    let found = CONTENT.mark(&scratch.buffer[..len]);
    Ok(start + found.unwrap_or(len) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::attributes::Moment;
    use crate::walk::file_stat::Fence;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    /// A file that somebody else changes whenever it is read.
    #[derive(Clone)]
    struct Restless {
        state: Rc<State>,
    }

    struct State {
        content: RefCell<Vec<u8>>,
        changes: Cell<i64>,
        change: RefCell<Box<Change>>,
    }

    /// Changes the content behind each reading, and says whether it did.
    type Change = dyn FnMut(&mut Vec<u8>) -> bool;

    impl Restless {
        fn new(content: Vec<u8>, change: impl FnMut(&mut Vec<u8>) -> bool + 'static) -> Self {
            let (content, change) = (RefCell::new(content), RefCell::new(Box::new(change) as _));
            Self { state: Rc::new(State { content, changes: Cell::new(0), change }) }
        }

        fn read(&self) -> Result<Content, Obstacle> {
            read(|| Ok(self.clone()), &mut Scratch::new())
        }

        fn reopened(&self) -> Vec<u8> {
            self.state.content.borrow().clone()
        }
    }

    impl Source for Restless {
        fn look(&self) -> io::Result<Look> {
            let at = Moment { s: self.state.changes.get(), ns: 0 };
            let size = self.state.content.borrow().len() as u64;
            Ok(Look {
                kind: Kind::File,
                fence: Fence { device: 1, inode: 1, size, modified: at, changed: at },
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

    /// What is read of bytes that stay as they are.
    fn calm(content: &[u8]) -> Vec<Extent> {
        let file = Restless::new(content.to_vec(), |_| false);
        let content = file.read().expect("it does not change");
        assert!(content.is_whole);
        content.extents
    }

    #[test]
    fn a_file_that_changes_twice_is_read_three_times() {
        let mut left = 2;
        let file = Restless::new(vec![1; 20_000], move |content| {
            content[5] += u8::from(left > 0);
            left -= 1;
            left >= 0
        });
        let content = file.read().expect("it is calm in the end");
        assert!(content.is_whole);
        assert_eq!(content.extents, calm(&file.reopened()));
    }

    #[test]
    fn a_file_that_grows_is_taken_as_far_as_it_was_there() {
        let file = Restless::new(vec![1; 20_000], |content| {
            content.extend([2; 3000]);
            true
        });
        let content = file.read().expect("its beginning stays");
        assert!(!content.is_whole);
        let size = content.look.fence.size as usize;
        assert_eq!(content.extents, calm(&file.reopened()[..size]));
    }

    #[test]
    fn a_file_that_is_rewritten_again_and_again_is_refused() {
        let file = Restless::new(vec![1; 20_000], |content| {
            content[7] = content[7].wrapping_add(1);
            true
        });
        assert!(matches!(file.read(), Err(Obstacle::Changed)));
    }

    #[test]
    fn a_file_that_shrinks_is_refused_until_it_stays() {
        let file = Restless::new(vec![1; 20_000], |content| {
            content.pop();
            true
        });
        assert!(matches!(file.read(), Err(Obstacle::Changed)));
        let mut left = 1;
        let file = Restless::new(vec![1; 2 << 20], move |content| {
            content.truncate(30_000);
            left -= 1;
            left >= 0
        });
        assert_eq!(file.read().expect("it stays").extents, calm(&[1; 30_000]));
    }

    #[test]
    fn a_file_whose_times_change_alone_is_taken() {
        let file = Restless::new(vec![1; 20_000], |_| true);
        let content = file.read().expect("its bytes stay");
        assert!(!content.is_whole);
        assert_eq!(content.extents, calm(&[1; 20_000]));
    }

    #[test]
    fn segments_are_all_there_without_gaps() {
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
        // Something new in front moves all segments, but few chunks are cut in other places.
        let moved = calm(&[&[9; 1000], &content[..]].concat());
        let chunks = |extents: &[Extent]| -> std::collections::HashSet<_> {
            extents.iter().filter_map(|extent| extent.chunk).map(|chunk| chunk.0).collect()
        };
        let new = chunks(&moved).difference(&chunks(&extents)).count();
        assert!(new < 12, "{new}");
    }
}
