//! Listing of all directories of a tree by several threads.

pub(crate) mod file_stat;
pub(crate) mod ignores;
pub(crate) mod listing;
pub(crate) mod root;

use crate::content::source::Source;
use crate::error::SnapshotError;
use crate::format::limits::DEPTH_MAX;
use crate::options::Options;
use crate::walk::ignores::Ignores;
use crate::walk::listing::{EntryKind, Found, ListedEntry, Listing, PendingDirectory, join, list};
use crate::walk::root::{NameStat, Root};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Listings by the number of their directory; 0 is the root. Vanished directories have none.
pub(crate) type Listings = Vec<Option<Listing>>;

struct Walk<'a> {
    root: &'a Root,
    options: &'a Options,
    state: Mutex<State>,
    /// Notified when a directory may be waiting, or when all work is done.
    changed: Condvar,
}

struct State {
    /// Stack of directories to be listed, with their numbers. Depth-first order keeps it short.
    waiting: Vec<(u32, PendingDirectory)>,
    /// Number of directories that are being listed.
    busy: usize,
    listings: Listings,
    failure: Option<SnapshotError>,
}

/// Lists a directory and all directories inside.
///
/// # Errors
/// A file or directory cannot be read and is not skipped, a pattern is invalid, or the tree is too
/// deep.
pub(crate) fn walk(root: &Root, options: &Options) -> Result<Listings, SnapshotError> {
    let ignores = Arc::new(Ignores::new(&options.ignore)?);
    let unreadable = |source| SnapshotError::Root { path: root.full(b""), source };
    let stat = root.directory(b"").and_then(|directory| directory.stat()).map_err(unreadable)?;
    let first = PendingDirectory { path: Box::default(), stat, ignores, location: None };
    let state = State { waiting: vec![(0, first)], busy: 0, listings: vec![None], failure: None };
    let walk = Walk { root, options, state: Mutex::new(state), changed: Condvar::new() };
    std::thread::scope(|scope| {
        for _ in 1..options.threads {
            scope.spawn(|| walk.run(stat.file_version.device));
        }
        walk.run(stat.file_version.device);
    });
    let state = walk.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.failure {
        Some(failure) => Err(failure),
        None => Ok(state.listings),
    }
}

impl State {
    /// Corrects the entry of a directory that has been replaced by something else.
    fn correct(&mut self, location: Option<(u32, u32)>, stat_name: NameStat) {
        let Some((number, nth)) = location else { return };
        let Some(listing) = &mut self.listings[number as usize] else { return };
        let listed = &mut listing.names[nth as usize];
        *listed = ListedEntry::new(&listed.name, stat_name);
    }
}

impl Walk<'_> {
    /// Lists directories until the queue is empty.
    fn run(&self, device: u64) {
        while let Some((number, pending)) = self.next() {
            let listed = list(self.root, self.options, &pending);
            let mut state = self.lock();
            state.busy -= 1;
            match listed {
                Ok(Found::Listing(listing)) => self.add(&mut state, number, listing, device),
                Ok(Found::Replaced(stat_name)) => state.correct(pending.location, stat_name),
                Ok(Found::Gone) => {}
                Err(failure) => {
                    state.failure.get_or_insert(failure);
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<(u32, PendingDirectory)> {
        let mut state = self.lock();
        loop {
            if state.failure.is_some() {
                return None;
            }
            if let Some(next) = state.waiting.pop() {
                state.busy += 1;
                return Some(next);
            }
            if state.busy == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a listing, and queues its subdirectories.
    fn add(&self, state: &mut State, number: u32, mut listing: Listing, device: u64) {
        let is_root = listing.path.is_empty();
        let slashes = listing.path.iter().filter(|byte| **byte == b'/').count();
        let depth = if is_root { 1 } else { slashes + 2 };
        for (nth, listed) in listing.names.iter_mut().enumerate() {
            let EntryKind::Directory(inside) = &mut listed.kind else { continue };
            if listed.stat.file_version.device != device && !self.options.cross_file_systems {
                continue;
            }
            let path = join(&listing.path, &listed.name);
            if depth > DEPTH_MAX {
                let path = self.root.full(&path);
                state.failure.get_or_insert(SnapshotError::TooDeep { path });
                return;
            }
            let next = state.listings.len() as u32;
            *inside = Some(next);
            state.listings.push(None);
            let pending = PendingDirectory {
                path: path.into(),
                stat: listed.stat,
                ignores: Arc::clone(&listing.ignores),
                location: Some((number, nth as u32)),
            };
            state.waiting.push((next, pending));
        }
        state.listings[number as usize] = Some(listing);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
