//! Queue of chunks for which reads wait.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;
use rustix::event::{EventfdFlags, eventfd};

/// Queue of chunks without duplicates, in the order in which they were requested.
pub(crate) struct Wanted {
    queue: Mutex<Queue>,
    /// Eventfd that is readable while the queue is not empty.
    bell: OwnedFd,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<ChunkId>,
    /// Chunks in the queue, and chunks that were taken but have not arrived yet.
    known: HashSet<ChunkId>,
}

impl Wanted {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    /// Requests chunks. Chunks that were requested already keep their position.
    pub(crate) fn want(&self, chunks: impl IntoIterator<Item = ChunkId>) {
        let mut queue = self.queue();
        let before = queue.waiting.len();
        for chunk in chunks {
            if queue.known.insert(chunk) {
                queue.waiting.push_back(chunk);
            }
        }
        if before == 0 && !queue.waiting.is_empty() {
            self.ring();
        }
    }

    /// Takes chunks to fetch them. The caller must pass each of them to `conclude`.
    pub(crate) fn take(&self, count_max: usize) -> Vec<ChunkId> {
        let mut queue = self.queue();
        let count = count_max.min(queue.waiting.len());
        let taken = queue.waiting.drain(..count).collect();
        // Reset the eventfd, and signal again if chunks are left for another caller.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        if !queue.waiting.is_empty() {
            self.ring();
        }
        taken
    }

    /// Marks chunks as arrived or refused, so that they can be requested again.
    pub(crate) fn conclude(&self, chunks: &[ChunkId]) {
        let mut queue = self.queue();
        for chunk in chunks {
            queue.known.remove(chunk);
        }
    }

    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn ring(&self) {
        // Fails only if the counter overflows.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings(wanted: &Wanted) -> bool {
        let mut bell = [PollFd::from_borrowed_fd(wanted.bell(), PollFlags::IN)];
        poll(&mut bell, Some(&Timespec::default())).is_ok_and(|count| count == 1)
    }

    #[test]
    fn each_is_brought_once_until_it_has_come() {
        let wanted = Wanted::new().expect("an eventfd can be made");
        let [one, two] = [ChunkId([1; 32]), ChunkId([2; 32])];
        wanted.want([one, two, one]);
        assert_eq!(wanted.take(1), [one]);
        wanted.want([one]);
        assert_eq!(wanted.take(9), [two]);
        wanted.conclude(&[one, two]);
        wanted.want([one]);
        assert_eq!(wanted.take(9), [one]);
    }

    #[test]
    fn the_bell_rings_while_something_waits() {
        let wanted = Wanted::new().expect("an eventfd can be made");
        assert!(!rings(&wanted));
        wanted.want([ChunkId([1; 32]), ChunkId([2; 32])]);
        assert!(rings(&wanted));
        wanted.take(1);
        assert!(rings(&wanted));
        wanted.take(1);
        assert!(!rings(&wanted));
    }
}
