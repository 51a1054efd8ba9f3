//! Threads that read many files, and large ones in parts.

use crate::attributes::Kind;
use crate::error::SnapshotError;
use crate::look::Look;
use crate::options::Options;
use crate::reading::{Content, Extents, Obstacle, Run, Scratch, cut, ranges, read, segments};
use crate::root::{Glance, Root, is_gone};
use crate::source::Source;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, PoisonError};

/// Bytes of a file from which on several threads read it.
const LARGE: u64 = 16 << 20;
/// Bytes that one thread reads of it at a time, at least.
const PART: u64 = 8 << 20;
/// How often a file may vanish and be there again.
const RETURNS_MAX: usize = 3;

/// A file that is to be read, as it was seen in its directory.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) path: Vec<u8>,
    pub(crate) look: Look,
}

/// What has become of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    Content(Content),
    /// Its name leads to something else now, which is no directory.
    Else(Glance),
    Gone,
    Skipped,
}

/// A large file that is being read.
struct Large {
    job: usize,
    ranges: Vec<Range<u64>>,
    /// What was read, by the number of the segment.
    runs: Mutex<Vec<(usize, Run)>>,
    /// Parts that are still to be read.
    left: AtomicUsize,
    /// Whether the parts may be of different times.
    is_torn: AtomicBool,
}

enum Task {
    Whole(usize),
    /// Some segments of a large file, by their number among all of it, range and place there.
    Part {
        large: usize,
        segments: Vec<(usize, usize, u64)>,
    },
}

struct Crew<'a> {
    root: &'a Root,
    options: &'a Options,
    jobs: &'a [Job],
    larges: Vec<Large>,
    tasks: Vec<Task>,
    next: AtomicUsize,
    failure: Mutex<Option<SnapshotError>>,
}

/// Reads files; gives what has become of each, in their order.
///
/// # Errors
/// One cannot be read and is not skipped, or one does not stay as it is.
pub(crate) fn read_all(
    root: &Root,
    options: &Options,
    jobs: &[Job],
) -> Result<Vec<Outcome>, SnapshotError> {
    let (larges, tasks) = plan(root, jobs);
    let crew = Crew {
        root,
        options,
        jobs,
        larges,
        tasks,
        next: AtomicUsize::new(0),
        failure: Mutex::new(None),
    };
    let mut outcomes: Vec<Option<Outcome>> = Vec::new();
    outcomes.resize_with(jobs.len(), || None);
    std::thread::scope(|scope| {
        let others = options.threads.min(crew.tasks.len()).saturating_sub(1);
        let others: Vec<_> = (0..others).map(|_| scope.spawn(|| crew.run())).collect();
        let mut done = crew.run();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        for (job, outcome) in done {
            outcomes[job] = Some(outcome);
        }
    });
    match crew.failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(failure) => Err(failure),
        None => Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Gone)).collect()),
    }
}

/// Large files in parts come first, so that no thread is left alone with one at the end.
fn plan(root: &Root, jobs: &[Job]) -> (Vec<Large>, Vec<Task>) {
    let (mut larges, mut parts, mut wholes) = (Vec::new(), Vec::new(), Vec::new());
    for (job, Job { path, look }) in jobs.iter().enumerate() {
        let is_large = look.fence.size >= LARGE;
        let found = is_large.then(|| root.file(path).and_then(|file| ranges(&file, look)));
        // Whatever is wrong is found again where it is dealt with.
        let Some(Ok(ranges)) = found else {
            wholes.push(Task::Whole(job));
            continue;
        };
        let all = batches(&ranges);
        if all.is_empty() {
            wholes.push(Task::Whole(job));
            continue;
        }
        let (large, left) = (larges.len(), AtomicUsize::new(all.len()));
        parts.extend(all.into_iter().map(|segments| Task::Part { large, segments }));
        let (runs, is_torn) = (Mutex::default(), AtomicBool::new(false));
        larges.push(Large { job, ranges, runs, left, is_torn });
    }
    parts.append(&mut wholes);
    (larges, parts)
}

/// All segments, some at a time.
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

impl Crew<'_> {
    /// Does what is to be done until there is nothing.
    fn run(&self) -> Vec<(usize, Outcome)> {
        let mut scratch = Scratch::new();
        let mut done = Vec::new();
        while let Some(task) = self.tasks.get(self.next.fetch_add(1, Relaxed)) {
            let result = match task {
                Task::Whole(job) => self.whole(*job, &mut scratch).map(Some),
                Task::Part { large, segments } => self.part(*large, segments, &mut scratch),
            };
            match result {
                Ok(outcome) => done.extend(outcome),
                Err(failure) => {
                    self.failure
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(failure);
                    self.next.store(self.tasks.len(), Relaxed);
                }
            }
        }
        done
    }

    /// Reads a file at once.
    fn whole(&self, job: usize, scratch: &mut Scratch) -> Result<(usize, Outcome), SnapshotError> {
        let path = &self.jobs[job].path;
        let unreadable = |source| SnapshotError::Unreadable { path: self.root.full(path), source };
        let changing = || SnapshotError::Changing { path: self.root.full(path) };
        let mut was_there = false;
        for _ in 0..RETURNS_MAX {
            match read(|| self.root.file(path), scratch) {
                Ok(content) => return Ok((job, Outcome::Content(content))),
                Err(Obstacle::Changed) => return Err(changing()),
                Err(Obstacle::Failed(error)) if !is_gone(&error) => {
                    let is_skipped = self.options.skip_unreadable;
                    return if is_skipped {
                        Ok((job, Outcome::Skipped))
                    } else {
                        Err(unreadable(error))
                    };
                }
                Err(Obstacle::NoFile) => was_there = true,
                Err(Obstacle::Failed(_)) => was_there = false,
            }
            match self.root.glance(path).map_err(unreadable)? {
                None => return Ok((job, Outcome::Gone)),
                Some((look, _)) if look.kind == Kind::File => {}
                Some((look, _)) if look.kind == Kind::Directory => return Err(changing()),
                Some(glance) => return Ok((job, Outcome::Else(glance))),
            }
        }
        // What comes and goes all the time was not there at one of these times.
        if was_there { Err(changing()) } else { Ok((job, Outcome::Gone)) }
    }

    /// Reads a part of a large file; after the last one, there is an outcome.
    fn part(
        &self,
        large: usize,
        segments: &[(usize, usize, u64)],
        scratch: &mut Scratch,
    ) -> Result<Option<(usize, Outcome)>, SnapshotError> {
        let large = &self.larges[large];
        match self.runs(large, segments, scratch) {
            Ok(runs) => large.runs.lock().unwrap_or_else(PoisonError::into_inner).extend(runs),
            // Whatever it was comes up again when the file is read at once.
            Err(_) => large.is_torn.store(true, Relaxed),
        }
        if large.left.fetch_sub(1, AcqRel) > 1 {
            return Ok(None);
        }
        match self.together(large) {
            Some(content) => Ok(Some((large.job, Outcome::Content(content)))),
            None => self.whole(large.job, scratch).map(Some),
        }
    }

    fn runs(
        &self,
        large: &Large,
        segments: &[(usize, usize, u64)],
        scratch: &mut Scratch,
    ) -> Result<Vec<(usize, Run)>, Obstacle> {
        if large.is_torn.load(Relaxed) {
            return Err(Obstacle::Changed);
        }
        let Job { path, look } = &self.jobs[large.job];
        let file = self.root.file(path)?;
        if file.look()?.fence != look.fence {
            return Err(Obstacle::Changed);
        }
        let each = segments.iter().map(|(number, range, nth)| {
            Ok((*number, cut(&file, &large.ranges[*range], *nth, scratch)?))
        });
        each.collect()
    }

    /// What all parts are together, if the file has not changed since it was seen first.
    fn together(&self, large: &Large) -> Option<Content> {
        if large.is_torn.load(Relaxed) {
            return None;
        }
        let Job { path, look: before } = &self.jobs[large.job];
        let file = self.root.file(path).ok()?;
        let xattrs = file.xattrs();
        let look = file.look().ok().filter(|look| look.fence == before.fence)?;
        let mut runs =
            std::mem::take(&mut *large.runs.lock().unwrap_or_else(PoisonError::into_inner));
        runs.sort_unstable_by_key(|(number, _)| *number);
        let mut extents = Extents::default();
        runs.into_iter().for_each(|(_, run)| extents.push(run));
        let extents = extents.finish(look.fence.size);
        Some(Content { look, xattrs, extents, is_whole: true })
    }
}
