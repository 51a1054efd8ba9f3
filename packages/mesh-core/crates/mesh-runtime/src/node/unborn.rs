//! Messages that have overtaken the spawn of their receiver.
//!
//! A spawns an actor on B and tells C; what C sends to B may come before what A has sent. Such
//! messages wait a while for the spawn.

use crate::hash::FastMap;
use mesh_wire::frame::Frame;
use mesh_wire::id::{Address, PortId};
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
