//! Thread pool that reads many files, and large files in parts.

use crate::content::file_reader::{
    Content, Extents, ReadFailure, Run, Scratch, chunk_segment, ranges, read, segments,
};
use crate::content::files::{at, path};
use crate::content::source::Source;
use crate::error::SnapshotError;
use crate::options::Options;
use crate::tree::attributes::Kind;
use crate::walk::Listings;
use crate::walk::file_stat::FileStat;
use crate::walk::root::{NameStat, Root, is_gone};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Minimum size in bytes at which a file is read by several threads.
const LARGE: u64 = 16 << 20;
/// Minimum number of bytes of a large file that one thread reads at a time.
const PART: u64 = 8 << 20;
/// Maximum number of times a file may vanish and reappear.
const RETURNS_MAX: usize = 3;

/// A file to be read: the number of its listing and the index of its name there.
pub(crate) type Job = (u32, u32);

/// Result of reading a file.
#[derive(Debug)]
pub(crate) enum Outcome {
    Content(Content),
    /// The name has been replaced by something that is neither a file nor a directory.
    Replaced(NameStat),
    Gone,
    Skipped,
}

/// A large file that is being read.
struct LargeFile {
    job: usize,
    ranges: Vec<Range<u64>>,
    /// Results, with the number of their segment.
    runs: Mutex<Vec<(usize, Run)>>,
    /// Number of parts that are still to be read.
    left: AtomicUsize,
    /// Whether the parts may be from different versions of the file.
    is_torn: AtomicBool,
}

enum Task {
    Whole(usize),
    /// Segments of a large file: number in the whole file, index of the range, and number in the
    /// range.
    Part {
        large: usize,
        segments: Vec<(usize, usize, u64)>,
    },
}

struct ReaderPool<'a> {
    root: &'a Root,
    options: &'a Options,
    listings: &'a Listings,
    jobs: &'a [Job],
    /// Indexed by job; set when the job is done.
    outcomes: Vec<OnceLock<Outcome>>,
    large_files: Vec<LargeFile>,
    tasks: Vec<Task>,
    next: AtomicUsize,
    failure: Mutex<Option<SnapshotError>>,
}

/// Reads files; returns the outcomes in the same order.
///
/// # Errors
/// A file cannot be read and is not skipped, or changes during each attempt to read it.
pub(crate) fn read_all(
    root: &Root,
    options: &Options,
    listings: &Listings,
    jobs: &[Job],
) -> Result<impl Iterator<Item = Outcome> + use<>, SnapshotError> {
    let (large_files, tasks) = plan(root, listings, jobs);
    let mut outcomes = Vec::new();
    outcomes.resize_with(jobs.len(), OnceLock::new);
    let pool = ReaderPool {
        root,
        options,
        listings,
        jobs,
        outcomes,
        large_files,
        tasks,
        next: AtomicUsize::new(0),
        failure: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        let others = options.threads.min(pool.tasks.len()).saturating_sub(1);
        for _ in 0..others {
            scope.spawn(|| pool.run());
        }
        pool.run();
    });
    match pool.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(pool.outcomes.into_iter().map(|one| one.into_inner().unwrap_or(Outcome::Gone))),
    }
}

/// Plans the tasks. Parts of large files come first, so that all threads finish at about the same
/// time.
fn plan(root: &Root, listings: &Listings, jobs: &[Job]) -> (Vec<LargeFile>, Vec<Task>) {
    let (mut large_files, mut parts, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
    for (job, name) in jobs.iter().enumerate() {
        let stat = at(listings, *name).stat;
        let file = || root.file(&path(listings, *name));
        let is_large = stat.file_version.size >= LARGE;
        let found = is_large.then(|| file().and_then(|file| ranges(&file, &stat)));
        // Ignore errors here: the task that reads the whole file reports them.
        let Some(Ok(ranges)) = found else {
            wholes.push(Task::Whole(job));
            continue;
        };
        let all = batches(&ranges);
        if all.is_empty() {
            wholes.push(Task::Whole(job));
            continue;
        }
        let (large, left) = (large_files.len(), AtomicUsize::new(all.len()));
        parts.extend(all.into_iter().map(|segments| Task::Part { large, segments }));
        let (runs, is_torn) = (Mutex::default(), AtomicBool::new(false));
        large_files.push(LargeFile { job, ranges, runs, left, is_torn });
    }
    parts.append(&mut wholes);
    (large_files, parts)
}

/// Groups all segments into batches of at least `PART` bytes.
fn batches(ranges: &[Range<u64>]) -> Vec<Vec<(usize, usize, u64)>> {
    let (mut batches, mut batch) = (Vec::new(), Vec::new());
    let (mut number, mut bytes) = (0, 0);
    for (range, at) in ranges.iter().enumerate() {
        let count = segments(at);
        for nth in 0..count {
            batch.push((number, range, nth));
            number += 1;
            bytes += (at.end - at.start) / count;
            if bytes >= PART {
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

impl ReaderPool<'_> {
    /// Executes tasks until the queue is empty.
    fn run(&self) {
        let mut scratch = Scratch::new();
        while let Some(task) = self.tasks.get(self.next.fetch_add(1, Relaxed)) {
            let result = match task {
                Task::Whole(job) => self.read_whole(*job, &mut scratch).map(Some),
                Task::Part { large, segments } => self.read_part(*large, segments, &mut scratch),
            };
            match result {
                Ok(Some((job, outcome))) => {
                    let is_first = self.outcomes[job].set(outcome).is_ok();
                    assert!(is_first, "a job is done once");
                }
                Ok(None) => {}
                Err(failure) => {
                    self.failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(failure);
                    self.next.store(self.tasks.len(), Relaxed);
                }
            }
        }
    }

    fn path(&self, job: usize) -> Vec<u8> {
        path(self.listings, self.jobs[job])
    }

    /// Metadata of the file from the listing of its directory.
    fn stat(&self, job: usize) -> &FileStat {
        &at(self.listings, self.jobs[job]).stat
    }

    /// Reads a whole file.
    fn read_whole(
        &self,
        job: usize,
        scratch: &mut Scratch,
    ) -> Result<(usize, Outcome), SnapshotError> {
        let path = &self.path(job)[..];
        let unreadable = |source| SnapshotError::Unreadable { path: self.root.full(path), source };
        let changing = || SnapshotError::Changing { path: self.root.full(path) };
        let mut was_there = false;
        for _ in 0..RETURNS_MAX {
            match read(|| self.root.file(path), scratch) {
                Ok(content) => return Ok((job, Outcome::Content(content))),
                Err(ReadFailure::Changed) => return Err(changing()),
                Err(ReadFailure::Failed(error)) if !is_gone(&error) => {
                    let is_skipped = self.options.skip_unreadable;
                    return if is_skipped {
                        Ok((job, Outcome::Skipped))
                    } else {
                        Err(unreadable(error))
                    };
                }
                Err(ReadFailure::NoFile) => was_there = true,
                Err(ReadFailure::Failed(_)) => was_there = false,
            }
            match self.root.stat_name(path).map_err(unreadable)? {
                None => return Ok((job, Outcome::Gone)),
                Some((stat, _)) if stat.kind == Kind::File => {}
                Some((stat, _)) if stat.kind == Kind::Directory => return Err(changing()),
                Some(stat_name) => return Ok((job, Outcome::Replaced(stat_name))),
            }
        }
        // A file that repeatedly appears and vanishes did not exist at one of these times.
        if was_there { Err(changing()) } else { Ok((job, Outcome::Gone)) }
    }

    /// Reads a part of a large file. The thread that reads the last part returns the outcome.
    fn read_part(
        &self,
        large: usize,
        segments: &[(usize, usize, u64)],
        scratch: &mut Scratch,
    ) -> Result<Option<(usize, Outcome)>, SnapshotError> {
        let large = &self.large_files[large];
        match self.read_segments(large, segments, scratch) {
            Ok(runs) => large.runs.lock().unwrap_or_else(PoisonError::into_inner).extend(runs),
            // The error occurs again when the file is read as a whole.
            Err(_) => large.is_torn.store(true, Relaxed),
        }
        if large.left.fetch_sub(1, AcqRel) > 1 {
            return Ok(None);
        }
        match self.combine(large) {
            Some(content) => Ok(Some((large.job, Outcome::Content(content)))),
            None => self.read_whole(large.job, scratch).map(Some),
        }
    }

    fn read_segments(
        &self,
        large: &LargeFile,
        segments: &[(usize, usize, u64)],
        scratch: &mut Scratch,
    ) -> Result<Vec<(usize, Run)>, ReadFailure> {
        if large.is_torn.load(Relaxed) {
            return Err(ReadFailure::Changed);
        }
        let file = self.root.file(&self.path(large.job))?;
        if file.stat()?.file_version != self.stat(large.job).file_version {
            return Err(ReadFailure::Changed);
        }
        let each = segments.iter().map(|(number, range, nth)| {
            Ok((*number, chunk_segment(&file, &large.ranges[*range], *nth, scratch)?))
        });
        each.collect()
    }

    /// Combines the parts, if the file has not changed since it was listed.
    fn combine(&self, large: &LargeFile) -> Option<Content> {
        if large.is_torn.load(Relaxed) {
            return None;
        }
        let file = self.root.file(&self.path(large.job)).ok()?;
        let xattrs = file.xattrs();
        let before = self.stat(large.job).file_version;
        let stat = file.stat().ok().filter(|stat| stat.file_version == before)?;
        let mut runs =
            std::mem::take(&mut *large.runs.lock().unwrap_or_else(PoisonError::into_inner));
        runs.sort_unstable_by_key(|(number, _)| *number);
        let mut extents = Extents::default();
        runs.into_iter().for_each(|(_, run)| extents.push(run));
        let extents = extents.finish(stat.file_version.size);
        Some(Content { stat, xattrs, extents, is_whole: true })
    }
}
