//! Reads that wait for chunks.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mesh_chunks::ChunkId;
use mesh_fuse::ReadReply;

/// A read of a file.
pub(crate) struct Request {
    /// Inode number of the file.
    pub number: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u32,
    /// Reply to the kernel. If it is dropped, the read fails.
    pub reply: ReadReply,
    /// When the read was requested.
    pub since: Instant,
    /// How often the read was suspended: a chunk may be evicted again before it is read.
    pub rounds: u32,
}

/// Suspended reads, and the chunks for which they wait.
#[derive(Default)]
pub(crate) struct SuspendedReads {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reads: HashMap<u64, SuspendedRead>,
    readers: HashMap<ChunkId, Vec<u64>>,
    next: u64,
    is_closed: bool,
}

struct SuspendedRead {
    request: Request,
    missing: Vec<ChunkId>,
}

impl SuspendedReads {
    /// Suspends a read until the chunks arrive. After `close`, the read fails at once.
    pub(crate) fn suspend(&self, request: Request, missing: Vec<ChunkId>) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        let token = state.next;
        state.next += 1;
        for chunk in &missing {
            state.readers.entry(*chunk).or_default().push(token);
        }
        state.reads.insert(token, SuspendedRead { request, missing });
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the reads for which no chunk is missing any more after these have arrived.
    pub(crate) fn arrived(&self, chunks: &[ChunkId]) -> Vec<Request> {
        let mut state = self.state();
        let mut ready = Vec::new();
        for chunk in chunks {
            for token in state.readers.remove(chunk).unwrap_or_default() {
                let Some(read) = state.reads.get_mut(&token) else { continue };
                read.missing.retain(|missing| missing != chunk);
                if read.missing.is_empty() {
                    ready.extend(state.reads.remove(&token).map(|read| read.request));
                }
            }
        }
        ready
    }

    /// Removes and returns the reads that wait for any of these chunks.
    pub(crate) fn refuse(&self, chunks: &[ChunkId]) -> Vec<Request> {
        let mut state = self.state();
        let tokens: Vec<u64> = chunks
            .iter()
            .flat_map(|chunk| state.readers.get(chunk).cloned().unwrap_or_default())
            .collect();
        tokens.into_iter().filter_map(|token| state.remove(token)).collect()
    }

    /// Drops a read that the kernel has cancelled.
    pub(crate) fn abandon(&self, read: u64) {
        let mut state = self.state();
        let found = state.reads.iter().find(|(_, one)| one.request.reply.id() == read);
        let token = found.map(|(token, _)| *token);
        let dropped = token.and_then(|token| state.remove(token));
        drop(state);
        drop(dropped);
    }

    /// Fails all suspended reads; later ones fail at once.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let reads = std::mem::take(&mut state.reads);
        state.readers.clear();
        drop(state);
        self.changed.notify_all();
        drop(reads);
    }

    /// Waits until at least one read has been suspended for `limit`, and fails all such reads.
    ///
    /// Returns false after `close`.
    pub(crate) fn expire(&self, limit: Duration) -> bool {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return false;
            }
            let Some(first) = state.reads.values().map(|read| read.request.since).min() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = (first + limit).saturating_duration_since(Instant::now());
            if left.is_zero() {
                let tokens: Vec<u64> = state
                    .reads
                    .iter()
                    .filter(|(_, read)| read.request.since.elapsed() >= limit)
                    .map(|(token, _)| *token)
                    .collect();
                let expired: Vec<_> =
                    tokens.into_iter().filter_map(|token| state.remove(token)).collect();
                drop(state);
                drop(expired);
                return true;
            }
            state =
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, token: u64) -> Option<Request> {
        let read = self.reads.remove(&token)?;
        for chunk in &read.missing {
            if let Some(readers) = self.readers.get_mut(chunk) {
                readers.retain(|reader| *reader != token);
                if readers.is_empty() {
                    self.readers.remove(chunk);
                }
            }
        }
        Some(read.request)
    }
}
