//! Queue of chunks for which reads wait.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;
use rustix::event::{EventfdFlags, eventfd};

/// Queue of chunks without duplicates, in the order in which they were requested.
pub(crate) struct ChunkRequests {
    queue: Mutex<Queue>,
    /// Eventfd that is readable while the queue is not empty.
    waker: OwnedFd,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<ChunkId>,
    /// Chunks in the queue, and chunks that were taken but have not arrived yet.
    known: HashSet<ChunkId>,
}

impl ChunkRequests {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), waker })
    }

    /// Requests chunks. Chunks that were requested already keep their position.
    pub(crate) fn request(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut queue = self.queue();
        let before = queue.waiting.len();
        for chunk in chunks {
            if queue.known.insert(chunk) {
                queue.waiting.push_back(chunk);
            }
        }
        if before == 0 && !queue.waiting.is_empty() {
            self.wake();
        }
    }

    /// Takes chunks to fetch them. The caller must pass each of them to `complete`.
    pub(crate) fn take(&self, count_max: usize) -> Vec<ChunkId> {
        let mut queue = self.queue();
        let count = count_max.min(queue.waiting.len());
        let taken = queue.waiting.drain(..count).collect();
        // Reset the eventfd, and signal again if chunks remain for another caller.
        let _ = rustix::io::read(&self.waker, &mut [0_u8; 8]);
        if !queue.waiting.is_empty() {
            self.wake();
        }
        taken
    }

    /// Marks chunks as arrived or refused, so that they can be requested again.
    pub(crate) fn complete(&self, chunks: &[ChunkId]) {
        let mut queue = self.queue();
        for chunk in chunks {
            queue.known.remove(chunk);
        }
    }

    pub(crate) fn waker(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }

    fn wake(&self) {
        // Fails only if the counter overflows.
        let _ = rustix::io::write(&self.waker, &1_u64.to_ne_bytes());
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_ready(chunk_requests: &ChunkRequests) -> bool {
        let mut waker = [PollFd::from_borrowed_fd(chunk_requests.waker(), PollFlags::IN)];
        poll(&mut waker, Some(&Timespec::default())).is_ok_and(|count| count == 1)
    }

    #[test]
    fn each_chunk_is_requested_once_until_it_arrives() {
        let chunk_requests = ChunkRequests::new().expect("an eventfd can be made");
        let [one, two] = [ChunkId([1; 32]), ChunkId([2; 32])];
        chunk_requests.request([one, two, one]);
        assert_eq!(chunk_requests.take(1), [one]);
        chunk_requests.request([one]);
        assert_eq!(chunk_requests.take(9), [two]);
        chunk_requests.complete(&[one, two]);
        chunk_requests.request([one]);
        assert_eq!(chunk_requests.take(9), [one]);
    }

    #[test]
    fn the_waker_is_readable_while_requests_are_pending() {
        let chunk_requests = ChunkRequests::new().expect("an eventfd can be made");
        assert!(!is_ready(&chunk_requests));
        chunk_requests.request([ChunkId([1; 32]), ChunkId([2; 32])]);
        assert!(is_ready(&chunk_requests));
        chunk_requests.take(1);
        assert!(is_ready(&chunk_requests));
        chunk_requests.take(1);
        assert!(!is_ready(&chunk_requests));
    }
}
