//! Which chunks somebody waits for, and who is to bring them.

use std::collections::{HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mesh_chunks::ChunkId;
use rustix::event::{EventfdFlags, eventfd};

/// A queue of chunks, each in it once, in the order in which they were wanted.
pub(crate) struct Wanted {
    queue: Mutex<Queue>,
    /// Readable while the queue has something.
    bell: OwnedFd,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<ChunkId>,
    /// Those in the queue, and those that were taken and have not come yet.
    known: HashSet<ChunkId>,
}

impl Wanted {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { queue: Mutex::default(), bell })
    }

    /// Asks for chunks; those that were asked for already stay where they are.
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

    /// Takes chunks off, to bring them; whoever does says `conclude` of each.
    pub(crate) fn take(&self, count_max: usize) -> Vec<ChunkId> {
        let mut queue = self.queue();
        let count = count_max.min(queue.waiting.len());
        let taken = queue.waiting.drain(..count).collect();
        // Emptied, then filled again if there is more: it is read by whoever waits for it.
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
        if !queue.waiting.is_empty() {
            self.ring();
        }
        taken
    }

    /// Notes that chunks have come, or will not come: they may be wanted again.
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
        // It fails only if it has rung more often than anybody can count.
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
