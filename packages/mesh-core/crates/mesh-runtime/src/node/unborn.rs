//! Messages that have overtaken the spawn of their receiver.
//!
//! A spawns an actor on B and tells C; what C sends to B may come before what A has sent. Such
//! messages wait a while for the spawn.

use super::epoch::epoch_of;
use crate::hash::FastMap;
use mesh_wire::frame::Frame;
use mesh_wire::id::{Address, PortId, ProcId};
use std::collections::VecDeque;
use std::time::Duration;

/// How long a message waits for the spawn of its receiver.
pub(super) const SPAWN_WAIT: Duration = Duration::from_secs(5);

/// Messages to receivers that are not there yet. Bounded by what each sender may have outstanding.
#[derive(Debug, Default)]
pub(super) struct Unborn {
    frames: FastMap<PortId, Vec<Frame>>,
    /// When each is given up, soonest first; unknown until the time is told next.
    due: VecDeque<(Option<Duration>, PortId)>,
    /// By the first bits of the numbers that a process makes: up to which it has spawned here all
    /// that it will, except these.
    settled: FastMap<u64, (PortId, Vec<PortId>)>,
}

/// Bits of a port number that count; above them is who has made it.
const COUNT_BITS: u32 = 40;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// Numbers of one life of a process: the next life of it begins elsewhere, above or below.
const LIFE_LEN: u64 = 1 << 32;

/// What a port number begins with: which process has made it.
pub(super) fn maker_of(port: PortId) -> u64 {
    port.0 >> COUNT_BITS
}

/// What the numbers begin with that a process makes: 24 bits of slot, into which the host is folded
/// above slot 2^12.
pub(super) fn maker(proc: ProcId) -> u64 {
    ((u64::from(proc.host.0) << 12) ^ u64::from(proc.slot)) & 0xFF_FFFF
}

/// The port with that place in what a process counts.
pub(super) fn numbered(proc: ProcId, count: u64) -> PortId {
    PortId((maker(proc) << COUNT_BITS) | (count & COUNT_MASK))
}

/// What keeps the numbers of the processes of a slot apart, also of different epochs: where the
/// count of one begins. Those of a later process may be the lower ones, and counts go round.
pub(super) fn first_count(incarnation: u32) -> u64 {
    // Epochs are far apart, so that the processes of a slot in each have numbers between.
    let life = u64::from(incarnation.wrapping_add(epoch_of(incarnation).wrapping_mul(97)) % 256);
    PortId::FIRST_FREE + life * LIFE_LEN
}

/// Where the count of a program's job begins, when it has had some before.
pub(super) fn count_of_job(job_count: u32) -> u64 {
    u64::from(job_count % 256) * LIFE_LEN
}

impl Unborn {
    /// Keeps a message.
    pub(super) fn keep(&mut self, frame: Frame) {
        let port = frame.head.to.port;
        let frames = self.frames.entry(port).or_default();
        if frames.is_empty() {
            self.due.push_back((None, port));
        }
        frames.push(frame);
    }

    /// Takes the messages of a receiver that has come.
    pub(super) fn take(&mut self, port: PortId) -> Vec<Frame> {
        self.frames.remove(&port).unwrap_or_default()
    }

    /// Notes that of the receivers up to a number, whose maker made them all, only some still come;
    /// takes the messages of the others.
    pub(super) fn settle(&mut self, up_to: PortId, coming: Vec<PortId>) -> Vec<Frame> {
        self.settled.insert(maker_of(up_to), (up_to, coming));
        let lost: Vec<PortId> =
            self.frames.keys().copied().filter(|port| self.is_settled(*port)).collect();
        lost.into_iter().flat_map(|port| self.take(port)).collect()
    }

    /// Whether a receiver that is not here will not come.
    pub(super) fn is_settled(&self, port: PortId) -> bool {
        self.settled
            .get(&maker_of(port))
            .is_some_and(|(up_to, coming)| is_before(port, *up_to) && !coming.contains(&port))
    }

    /// A process is dead: what the next in its slot makes is not what this one has spoken of.
    pub(super) fn forget(&mut self, proc: ProcId) {
        self.settled.remove(&maker(proc));
    }

    /// Takes a call back whose caller no longer waits.
    pub(super) fn withdraw(&mut self, port: PortId, from: Address) -> Vec<Frame> {
        let Some(frames) = self.frames.get_mut(&port) else { return Vec::new() };
        frames.extract_if(.., |frame| frame.head.from == from).collect()
    }

    /// Takes the messages that have waited too long.
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

    /// Lets the wait of every message begin again.
    pub(super) fn restart(&mut self) {
        self.due.iter_mut().for_each(|(due, _)| *due = None);
    }

    /// When `expire` is to be called next.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if self.is_untimed() {
            return Some(Duration::ZERO);
        }
        self.due.front().and_then(|(due, _)| *due)
    }

    /// Whether something has come since the time was told.
    pub(super) fn is_untimed(&self) -> bool {
        self.due.back().is_some_and(|(due, _)| due.is_none())
    }
}

/// Whether a process has made a number before another one of its, and not in another life.
fn is_before(port: PortId, up_to: PortId) -> bool {
    up_to.0.wrapping_sub(port.0) & COUNT_MASK < LIFE_LEN
}
