//! Messages that arrive before the spawn of their receiver.
//!
//! If A spawns an actor on B and sends the handle to C, a message from C to B may arrive before the
//! spawn from A. Such messages wait for the spawn for a limited time.

use super::epoch::epoch_of;
use crate::hash::FastMap;
use mesh_wire::frame::Frame;
use mesh_wire::id::{Address, PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a message waits for the spawn of its receiver.
pub(super) const SPAWN_WAIT: Duration = Duration::from_secs(5);

/// Messages to receivers that do not exist yet. Bounded by the limit on outstanding messages of
/// each sender.
#[derive(Debug, Default)]
pub(super) struct EarlyMessages {
    frames: FastMap<PortId, Vec<Frame>>,
    /// The expiry of the messages of each port, soonest first.
    ///
    /// `None` until the time is next advanced.
    due: VecDeque<(Option<Duration>, PortId)>,
    /// The announcements of processes, by the upper bits of their port numbers.
    ///
    /// Each contains the last number up to which the process has spawned everything here that it
    /// will, and the exceptions.
    settled: FastMap<u64, (PortId, Vec<PortId>)>,
}

/// Bits of a port number that are a counter; the bits above them identify the allocating process.
const COUNT_BITS: u32 = 40;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// Number of ports of one incarnation of a process.
///
/// The next incarnation starts at another number, which may be higher or lower.
const PORTS_PER_INCARNATION: u64 = 1 << 32;

/// Returns the upper bits of a port number, which identify the process that allocated it.
pub(super) fn allocator_of(port: PortId) -> u64 {
    port.0 >> COUNT_BITS
}

/// Returns the upper bits of the port numbers of a process.
///
/// They are 24 bits of slot, into which the host is folded above slot 2^12.
pub(super) fn allocator_id(proc: ProcId) -> u64 {
    ((u64::from(proc.host.0) << 12) ^ u64::from(proc.slot)) & 0xFF_FFFF
}

/// Returns the port with the given count of a process.
pub(super) fn port_from_count(proc: ProcId, count: u64) -> PortId {
    PortId((allocator_id(proc) << COUNT_BITS) | (count & COUNT_MASK))
}

/// Returns the first count of an incarnation.
///
/// It separates the numbers of successive processes of a slot, also across epochs. A later process
/// may have lower numbers, and counts wrap around.
pub(super) fn first_count(incarnation: u32) -> u64 {
    // Epochs are far apart, so that the processes of a slot in each epoch have numbers in between.
    let index = u64::from(incarnation.wrapping_add(epoch_of(incarnation).wrapping_mul(97)) % 256);
    PortId::FIRST_FREE + index * PORTS_PER_INCARNATION
}

/// Returns the first count of a job of a program that has run `job_count` jobs before.
pub(super) fn count_of_job(job_count: u32) -> u64 {
    u64::from(job_count % 256) * PORTS_PER_INCARNATION
}

impl EarlyMessages {
    /// Keeps a message.
    pub(super) fn keep(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        let frames = self.frames.entry(port).or_default();
        if frames.is_empty() {
            self.due.push_back((None, port));
        }
        frames.push(frame);
    }

    /// Whether no message waits.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.values().all(Vec::is_empty)
    }

    /// Takes the messages of a receiver that was spawned.
    pub(super) fn take(&mut self, port: PortId) -> Vec<Frame> {
        self.frames.remove(&port).unwrap_or_default()
    }

    /// Notes which receivers will still be spawned, and takes the messages of the others.
    ///
    /// Of the ports up to `up_to` that the allocator of `up_to` has allocated, only those in
    /// `expected` will be spawned.
    pub(super) fn settle(&mut self, up_to: PortId, expected: Vec<PortId>) -> Vec<Frame> {
        self.settled.insert(allocator_of(up_to), (up_to, expected));
        let lost: Vec<PortId> =
            self.frames.keys().copied().filter(|port| self.is_settled(*port)).collect();
        lost.into_iter().flat_map(|port| self.take(port)).collect()
    }

    /// Whether a receiver that does not exist will never be spawned.
    pub(super) fn is_settled(&self, port: PortId) -> bool {
        self.settled
            .get(&allocator_of(port))
            .is_some_and(|(up_to, expected)| is_before(port, *up_to) && !expected.contains(&port))
    }

    /// Notes that a process is dead.
    ///
    /// Its announcements do not apply to the next process in its slot.
    pub(super) fn forget(&mut self, proc: ProcId) {
        self.settled.remove(&allocator_id(proc));
    }

    /// Takes back a call whose caller no longer waits.
    pub(super) fn withdraw(&mut self, port: PortId, from: Address) -> Vec<Frame> {
        let Some(frames) = self.frames.get_mut(&port) else { return Vec::new() };
        frames.extract_if(.., |frame| frame.head.from == from).collect()
    }

    /// Takes the messages whose wait has expired.
    pub(super) fn expire(&mut self, now: Duration) -> Vec<Frame> {
        for (due, _) in self.due.iter_mut().rev().take_while(|(due, _)| due.is_none()) {
            *due = Some(now + SPAWN_WAIT);
        }
        let mut expired = Vec::new();
        while let Some(&(Some(due), port)) = self.due.front()
            && due <= now
        {
            self.due.pop_front();
            expired.extend(self.take(port));
        }
        expired
    }

    /// Restarts the wait of every message.
    pub(super) fn restart(&mut self) {
        self.due.iter_mut().for_each(|(due, _)| *due = None);
    }

    /// Returns when `expire` has to be called next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if self.is_untimed() {
            return Some(Duration::ZERO);
        }
        self.due.front().and_then(|(due, _)| *due)
    }

    /// Whether a message has arrived since the time was last advanced.
    pub(super) fn is_untimed(&self) -> bool {
        self.due.back().is_some_and(|(due, _)| due.is_none())
    }
}

/// Whether a process has allocated `port` before `up_to` and in the same incarnation.
fn is_before(port: PortId, up_to: PortId) -> bool {
    up_to.0.wrapping_sub(port.0) & COUNT_MASK < PORTS_PER_INCARNATION
}
