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
pub(crate) struct SuspendedReads {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reads: HashMap<u64, SuspendedRead>,
    /// Ids that were interrupted before the read was registered: another thread may have received
    /// the interrupt.
    early: VecDeque<u64>,
    is_closed: bool,
}

/// A suspended read.
#[derive(Debug)]
pub(crate) struct SuspendedRead {
    /// Device that received the request. Only this value refers to it, so a mount can end while a
    /// file system still has reads to answer.
    pub(crate) device: Arc<Device>,
    pub(crate) ino: u64,
}

impl SuspendedReads {
    /// Registers a read, unless it was interrupted already or the mount has ended.
    pub(crate) fn suspend(&self, id: u64, read: SuspendedRead) -> Result<(), SuspendedRead> {
        let mut state = lock(&self.state);
        let early = state.early.iter().position(|interrupted| *interrupted == id);
        if let Some(early) = early {
            state.early.remove(early);
        }
        if early.is_some() || state.is_closed {
            return Err(read);
        }
        state.reads.insert(id, read);
        Ok(())
    }

    /// Removes a read to reply to it.
    pub(crate) fn take(&self, id: u64) -> Option<SuspendedRead> {
        lock(&self.state).reads.remove(&id)
    }

    /// Removes a read that was interrupted, or records the interrupt if the read is unknown.
    pub(crate) fn interrupt(&self, id: u64) -> Option<SuspendedRead> {
        let mut state = lock(&self.state);
        let read = state.reads.remove(&id);
        if read.is_none() {
            // Interrupts of other requests arrive here too; they are evicted eventually.
            if state.early.len() == EARLY_MAX {
                state.early.pop_front();
            }
            state.early.push_back(id);
        }
        read
    }

    /// Returns whether a read still has no reply.
    pub(crate) fn contains(&self, id: u64) -> bool {
        lock(&self.state).reads.contains_key(&id)
    }

    /// Removes all reads, and rejects new ones from now on.
    pub(crate) fn close(&self) -> Vec<(u64, SuspendedRead)> {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.reads.drain().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    fn read() -> SuspendedRead {
        let file = File::options().write(true).open("/dev/null").expect("there is a null device");
        SuspendedRead {
            device: Arc::new(Device::adopt(file.into()).expect("it has flags")),
            ino: 2,
        }
    }

    #[test]
    fn a_suspended_read_can_be_taken_only_once() {
        let suspended_reads = SuspendedReads::default();
        suspended_reads.suspend(7, read()).expect("nothing is interrupted");
        assert!(suspended_reads.contains(7));
        assert!(suspended_reads.take(7).is_some());
        assert!(suspended_reads.take(7).is_none());
        assert!(!suspended_reads.contains(7));
    }

    #[test]
    fn an_interrupt_may_arrive_before_its_read() {
        let suspended_reads = SuspendedReads::default();
        assert!(suspended_reads.interrupt(7).is_none());
        assert!(suspended_reads.suspend(7, read()).is_err());
        suspended_reads.suspend(7, read()).expect("an interrupt counts once");
        assert!(suspended_reads.interrupt(7).is_some());
    }

    #[test]
    fn the_number_of_early_interrupts_is_bounded() {
        let suspended_reads = SuspendedReads::default();
        (0..1000).for_each(|id| assert!(suspended_reads.interrupt(id).is_none()));
        assert_eq!(lock(&suspended_reads.state).early.len(), EARLY_MAX);
        suspended_reads.suspend(0, read()).expect("it was pushed out");
        assert!(suspended_reads.suspend(999, read()).is_err());
    }

    #[test]
    fn no_read_is_suspended_after_the_mount_is_closed() {
        let suspended_reads = SuspendedReads::default();
        suspended_reads.suspend(7, read()).expect("nothing is interrupted");
        assert_eq!(suspended_reads.close().len(), 1);
        assert!(suspended_reads.suspend(8, read()).is_err());
    }
}
