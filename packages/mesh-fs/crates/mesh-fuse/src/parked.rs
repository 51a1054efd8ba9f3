//! Reads that are not answered yet.

use crate::device::Device;
use crate::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// How many interrupts are kept for reads that are not known yet. One thread at most has received
/// such a read without having parked it, so that one a thread would do.
const EARLY_MAX: usize = 256;

/// All reads of one mount that are not answered yet, by the id of the request. Whoever takes one
/// out answers it, so that each is answered once.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    reads: HashMap<u64, Waiting>,
    /// What was interrupted before it was parked: another thread may have received the interrupt.
    early: VecDeque<u64>,
    is_closed: bool,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Where it came from. Kept here alone, so that a mount can end while a file system still has
    /// reads to answer.
    pub(crate) device: Arc<Device>,
    pub(crate) ino: u64,
}

impl Parked {
    /// Parks a read, unless nobody waits for it any more.
    pub(crate) fn park(&self, id: u64, waiting: Waiting) -> Result<(), Waiting> {
        let mut held = lock(&self.held);
        let early = held.early.iter().position(|interrupted| *interrupted == id);
        if let Some(early) = early {
            held.early.remove(early);
        }
        if early.is_some() || held.is_closed {
            return Err(waiting);
        }
        held.reads.insert(id, waiting);
        Ok(())
    }

    /// Takes a read, to answer it.
    pub(crate) fn take(&self, id: u64) -> Option<Waiting> {
        lock(&self.held).reads.remove(&id)
    }

    /// Takes a read that was interrupted, or keeps in mind that it will be.
    pub(crate) fn interrupt(&self, id: u64) -> Option<Waiting> {
        let mut held = lock(&self.held);
        let waiting = held.reads.remove(&id);
        if waiting.is_none() {
            // What is not a read is interrupted too: such ones are pushed out in time.
            if held.early.len() == EARLY_MAX {
                held.early.pop_front();
            }
            held.early.push_back(id);
        }
        waiting
    }

    /// Whether a read still wants its answer.
    pub(crate) fn holds(&self, id: u64) -> bool {
        lock(&self.held).reads.contains_key(&id)
    }

    /// Takes all, and lets none in from now on.
    pub(crate) fn close(&self) -> Vec<(u64, Waiting)> {
        let mut held = lock(&self.held);
        held.is_closed = true;
        held.reads.drain().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn waiting() -> Waiting {
        let file = File::options().write(true).open("/dev/null").expect("there is a null device");
        Waiting { device: Arc::new(Device::adopt(file.into()).expect("it has flags")), ino: 2 }
    }

    #[test]
    fn a_read_is_taken_once() {
        let parked = Parked::default();
        parked.park(7, waiting()).expect("nothing is interrupted");
        assert!(parked.holds(7));
        assert!(parked.take(7).is_some());
        assert!(parked.take(7).is_none());
        assert!(!parked.holds(7));
    }

    #[test]
    fn an_interrupt_may_come_before_its_read() {
        let parked = Parked::default();
        assert!(parked.interrupt(7).is_none());
        assert!(parked.park(7, waiting()).is_err());
        parked.park(7, waiting()).expect("an interrupt counts once");
        assert!(parked.interrupt(7).is_some());
    }

    #[test]
    fn interrupts_of_what_never_comes_are_not_kept_for_ever() {
        let parked = Parked::default();
        (0..1000).for_each(|id| assert!(parked.interrupt(id).is_none()));
        assert_eq!(lock(&parked.held).early.len(), EARLY_MAX);
        parked.park(0, waiting()).expect("it was pushed out");
        assert!(parked.park(999, waiting()).is_err());
    }

    #[test]
    fn nothing_is_parked_when_the_mount_has_ended() {
        let parked = Parked::default();
        parked.park(7, waiting()).expect("nothing is interrupted");
        assert_eq!(parked.close().len(), 1);
        assert!(parked.park(8, waiting()).is_err());
    }
}
