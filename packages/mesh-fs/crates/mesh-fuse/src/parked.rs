//! Suspended reads.

use crate::device::Device;
use crate::lock;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

/// Maximum number of interrupts that are kept for unknown reads. Each thread has received at most
/// one read that it has not registered yet, so one per thread would suffice.
const EARLY_MAX: usize = 256;

/// All suspended reads of a mount, by request id.
///
/// The code that removes a read replies to it, so each read gets one reply.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    reads: HashMap<u64, Waiting>,
    /// Ids that were interrupted before the read was registered: another thread may have received
    /// the interrupt.
    early: VecDeque<u64>,
    is_closed: bool,
}

/// A suspended read.
#[derive(Debug)]
pub(crate) struct Waiting {
    /// Device that received the request. Only this value refers to it, so a mount can end while a
    /// file system still has reads to answer.
    pub(crate) device: Arc<Device>,
    pub(crate) ino: u64,
}

impl Parked {
    /// Registers a read, unless it was interrupted already or the mount has ended.
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

    /// Removes a read to reply to it.
    pub(crate) fn take(&self, id: u64) -> Option<Waiting> {
        lock(&self.held).reads.remove(&id)
    }

    /// Removes a read that was interrupted, or records the interrupt if the read is unknown.
    pub(crate) fn interrupt(&self, id: u64) -> Option<Waiting> {
        let mut held = lock(&self.held);
        let waiting = held.reads.remove(&id);
        if waiting.is_none() {
            // Interrupts of other requests arrive here too; they are evicted eventually.
            if held.early.len() == EARLY_MAX {
                held.early.pop_front();
            }
            held.early.push_back(id);
        }
        waiting
    }

    /// Returns whether a read still has no reply.
    pub(crate) fn holds(&self, id: u64) -> bool {
        lock(&self.held).reads.contains_key(&id)
    }

    /// Removes all reads, and rejects new ones from now on.
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
