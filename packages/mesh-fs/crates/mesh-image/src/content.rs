//! Copying the content of files from a store into an image by several threads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mesh_chunks::{ChunkId, Store};
use mesh_snapshot::{Extent, Kind, NodeId, Tree};

use crate::blocks::Blocks;
use crate::error::ImageError;
use crate::format::{BLOCK, Layout};
use crate::plan::{Place, Plan, nodes, pieces};

/// Maximum number of threads; more of them are not faster.
const THREADS_MAX: usize = 8;
/// Number of extents in a part of a file. Several threads can write parts of a long file.
const PART_LEN: usize = 256;

/// Files that are written.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    pub(crate) image: &'a File,
    pub(crate) blocks: &'a Blocks,
    /// Path of the image for errors.
    pub(crate) path: &'a Path,
}

/// A range of the extents of a file.
struct Part {
    node: NodeId,
    first: usize,
    end: usize,
}

/// Missing chunks, and the first error.
#[derive(Default)]
struct Failures {
    missing: Vec<ChunkId>,
    error: Option<ImageError>,
}

/// Writes file content that the blocks do not contain yet, and the inline tails of files.
pub(crate) fn write(
    tree: &Tree,
    store: &Store,
    plan: &Plan,
    targets: Targets<'_>,
) -> Result<(), ImageError> {
    let parts = parts(tree, plan);
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Failures::default());
    let work = || {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut missing = Vec::new();
            let written = write_part(tree, store, plan, targets, part, &mut missing);
            let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
            failures.missing.append(&mut missing);
            if let Err(error) = written {
                // Stop the other threads.
                next.store(parts.len(), Ordering::Relaxed);
                failures.error.get_or_insert(error);
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    thread::scope(|scope| {
        (1..threads.min(parts.len())).for_each(|_| {
            // If no thread can be created, this one does all the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        });
        work();
    });
    let Failures { missing, error } = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    match error {
        Some(error) => Err(error),
        None if !missing.is_empty() => Err(ImageError::Missing(missing)),
        None => Ok(()),
    }
}

fn parts(tree: &Tree, plan: &Plan) -> Vec<Part> {
    let mut parts = Vec::new();
    for (node, place) in nodes(tree).zip(&plan.places) {
        if tree.attributes(node).kind != Kind::File {
            continue;
        }
        let extents = tree.extents(node);
        let needed = extents.partition_point(|extent| extent.end <= first_needed(place));
        for first in (needed..extents.len()).step_by(PART_LEN) {
            parts.push(Part { node, first, end: (first + PART_LEN).min(extents.len()) });
        }
    }
    parts
}

/// Returns the offset in a file from which its content must be written.
fn first_needed(place: &Place) -> u64 {
    match place.layout {
        _ if place.is_new => 0,
        Layout::Inline { blocks, .. } => u64::from(blocks) * BLOCK,
        Layout::Plain { .. } | Layout::Mapped { .. } => u64::MAX,
    }
}

fn write_part(
    tree: &Tree,
    store: &Store,
    plan: &Plan,
    targets: Targets<'_>,
    part: &Part,
    missing: &mut Vec<ChunkId>,
) -> Result<(), ImageError> {
    let place = &plan.places[part.node.0 as usize];
    let extents = tree.extents(part.node);
    let destination = Destination::new(place, extents, targets);
    let mut start = part.first.checked_sub(1).map_or(0, |before| extents[before].end);
    for Extent { end, chunk } in &extents[part.first..part.end] {
        if let Some(chunk) = chunk {
            match store.get(chunk)? {
                Some(bytes) => destination
                    .write(&bytes, start)
                    .map_err(ImageError::system("write an image", targets.path))?,
                None => missing.push(*chunk),
            }
        }
        start = *end;
    }
    Ok(())
}

/// Locations of the content of one file.
struct Destination<'a> {
    place: &'a Place,
    targets: Targets<'a>,
    /// For a file with holes, the offset of each piece in the blocks.
    starts: Vec<u64>,
}

impl<'a> Destination<'a> {
    fn new(place: &'a Place, extents: &[Extent], targets: Targets<'a>) -> Self {
        let mut next = u64::from(place.start) * BLOCK;
        let starts = pieces(extents, place.size, place.layout).into_iter().map(|piece| {
            let start = next;
            next += if piece.has_bytes { piece.blocks * BLOCK } else { 0 };
            start
        });
        Self { place, targets, starts: starts.collect() }
    }

    /// Writes bytes that are at offset `start` of the file.
    fn write(&self, bytes: &[u8], start: u64) -> io::Result<()> {
        let blocks = self.targets.blocks.file();
        let first = u64::from(self.place.start) * BLOCK;
        match self.place.layout {
            Layout::Plain { .. } => blocks.write_all_at(bytes, first + start),
            Layout::Inline { blocks: count, .. } => {
                let before = u64::from(count) * BLOCK;
                let own = before.saturating_sub(start).min(bytes.len() as u64) as usize;
                if self.place.is_new {
                    blocks.write_all_at(&bytes[..own], first + start)?;
                }
                let at = self.place.behind() + (start + own as u64).saturating_sub(before);
                self.targets.image.write_all_at(&bytes[own..], at)
            }
            Layout::Mapped { piece_bits, .. } => {
                let len = BLOCK << piece_bits;
                let (mut rest, mut at) = (bytes, start);
                while !rest.is_empty() {
                    let inside = at % len;
                    let count = (len - inside).min(rest.len() as u64) as usize;
                    let (now, later) = rest.split_at(count);
                    blocks.write_all_at(now, self.starts[(at / len) as usize] + inside)?;
                    (rest, at) = (later, at + count as u64);
                }
                Ok(())
            }
        }
    }
}
