//! Whether the other hosts of the job are alive: one that is silent for too long is dead.
//!
//! Only agents of hosts listen for others, for only they have links that leave the host. Any byte
//! is a sign of life, so a host in the middle of sending a long frame is not taken for dead; one
//! that has nothing to say is asked.

use super::epoch::first_life;
use super::{Effect, Node};
use crate::events::EventKind;
use crate::fault;
use crate::hash::FastMap;
use crate::mailbox::Closed;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};
use std::time::Duration;

/// Looks at each host per heartbeat: how late a death may be noticed is a part of it.
const LOOKS_PER_HEARTBEAT: u32 = 4;
/// Heartbeats without a sign of life after which a host is dead.
const HEARTBEATS_MISSED_MAX: u32 = 3;

/// What is known of one other host.
#[derive(Debug)]
struct Beat {
    /// When it was last heard, to within one look; unknown until the first look.
    heard_at: Option<Duration>,
    has_spoken: bool,
    /// Whoever answers there says that the host is gone: that is no sign of its life.
    is_gone: bool,
    heartbeat: Duration,
    /// What those are told who wait for something on it when it dies.
    obituary: Bytes,
}

/// The hosts that this process listens for, and those that it knows to be dead.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    beats: FastMap<HostId, Beat>,
    next_look: Option<Duration>,
    dead: FastMap<HostId, Bytes>,
    /// Which machine is in the place of a host, where it is not the first.
    epochs: FastMap<HostId, u32>,
    /// Who was to be told of deaths on each host by that host, and now has to be told by us.
    watchers: FastMap<HostId, Vec<(u32, Address)>>,
}

impl Pulse {
    /// What those are told who want something of a host that is dead.
    pub(super) fn obituary(&self, host: HostId) -> Option<&Bytes> {
        self.dead.get(&host)
    }

    pub(super) fn epoch(&self, host: HostId) -> u32 {
        self.epochs.get(&host).copied().unwrap_or(0)
    }

    /// Listens for a host no more; gives what those are told who wait for something there.
    pub(super) fn give_up(&mut self, host: HostId) -> Bytes {
        self.beats.remove(&host).map(|beat| beat.obituary).unwrap_or_default()
    }

    /// Another machine is in the place of a dead one.
    pub(super) fn host_back(&mut self, host: HostId, epoch: u32) {
        self.dead.remove(&host);
        self.epochs.insert(host, epoch);
    }

    /// Notes who wants to be told of the end of a process of another host.
    pub(super) fn watches(&mut self, proc: ProcId, watcher: Address) {
        let watchers = self.watchers.entry(proc.host).or_default();
        let watcher = (proc.slot, watcher);
        if !watchers.contains(&watcher) {
            watchers.push(watcher);
        }
    }

    pub(super) fn trim(&mut self) {
        self.watchers.values_mut().for_each(Vec::shrink_to_fit);
    }

    /// Whether this process would notice the death of the host by itself.
    pub(super) fn expects(&self, host: HostId) -> bool {
        self.beats.contains_key(&host)
    }

    /// Notes that a host has told of the end of one of its processes itself.
    pub(super) fn told(&mut self, frame: &Frame) {
        let proc = frame.head.from.proc;
        if let Some(watchers) = self.watchers.get_mut(&proc.host) {
            watchers.retain(|watcher| *watcher != (proc.slot, frame.head.to));
        }
    }

    pub(super) fn next_look(&self) -> Option<Duration> {
        self.next_look
    }
}

impl Node {
    /// Listens for another host from now on: when nothing is heard of it for three heartbeats, it
    /// is dead, and `obituary` is what those are told who wait for something there.
    pub fn expect_host(&mut self, host: HostId, heartbeat: Duration, obituary: Bytes) {
        let beat = Beat { heard_at: None, has_spoken: true, is_gone: false, heartbeat, obituary };
        self.pulse.beats.insert(host, beat);
        self.pulse.next_look = Some(Duration::ZERO);
    }

    /// Takes a host for dead now, or says that it has left: what waits for it fails.
    pub fn host_gone(&mut self, host: HostId, obituary: Bytes) {
        self.pulse.beats.remove(&host);
        self.host_died(host, obituary);
    }

    /// Something came over a link, if only a part of a frame.
    pub fn heard(&mut self, link: super::LinkId) {
        if let Some(proc) = self.peer_of(link)
            && let Some(beat) = self.pulse.beats.get_mut(&proc.host)
        {
            beat.has_spoken = !beat.is_gone;
        }
    }

    /// Notes whether somebody answers in the place of a host that is gone, or itself.
    pub(super) fn answers_itself(&mut self, host: HostId, is_itself: bool) {
        if let Some(beat) = self.pulse.beats.get_mut(&host) {
            beat.is_gone = !is_itself;
            beat.has_spoken = is_itself;
        }
    }

    pub(super) fn listen(&mut self, now: Duration) {
        if self.pulse.next_look.is_none_or(|at| at > now) {
            return;
        }
        let mut silent = Vec::new();
        let mut dead = Vec::new();
        let mut next: Option<Duration> = None;
        for (host, beat) in &mut self.pulse.beats {
            let look = beat.heartbeat / LOOKS_PER_HEARTBEAT;
            if std::mem::take(&mut beat.has_spoken) || beat.heard_at.is_none() {
                beat.heard_at = Some(now);
            }
            let silence = now.saturating_sub(beat.heard_at.unwrap_or(now));
            if silence >= beat.heartbeat * HEARTBEATS_MISSED_MAX {
                dead.push(*host);
            } else if silence >= look {
                silent.push(*host);
            }
            next = Some(next.map_or(now + look, |next| next.min(now + look)));
        }
        self.pulse.next_look = next;
        let mut all: Vec<(HostId, Duration)> =
            self.pulse.beats.iter().map(|(host, beat)| (*host, beat.heartbeat)).collect();
        all.sort_unstable();
        for (host, heartbeat) in all {
            self.look_after(host, heartbeat);
        }
        silent.sort_unstable();
        for host in silent {
            self.ask_for_life(host.agent());
        }
        dead.sort_unstable();
        for host in dead {
            if let Some(beat) = self.pulse.beats.remove(&host) {
                self.host_died(host, beat.obituary);
            }
        }
    }

    /// Fails all that waits for a host, and tells all who asked that host to tell them.
    pub(super) fn host_died(&mut self, host: HostId, obituary: Bytes) {
        if self.pulse.dead.contains_key(&host) {
            return;
        }
        self.pulse.dead.insert(host, obituary.clone());
        let agent = host.agent();
        let living_from = first_life(self.pulse.epoch(host) + 1);
        self.bury(agent, living_from, fault::HOST_DIED, obituary.clone());
        for (slot, watcher) in self.pulse.watchers.remove(&host).unwrap_or_default() {
            let mut head = Head::new(
                Kind::Died,
                watcher,
                Address { proc: ProcId { host, slot }, port: PortId::NONE },
            );
            (head.rank, head.flags) = (living_from - 1, fault::HOST_DIED);
            self.dispatch(Frame { head, tail: obituary.clone() });
        }
        for proc in self.known_of(host) {
            if self.peer(proc).living_from < living_from {
                self.bury(proc, living_from, fault::HOST_DIED, obituary.clone());
            }
        }
        let from = Address { proc: agent, port: PortId::NONE };
        let to = Address { proc: self.config.me, port: PortId::AGENT };
        let mut head = Head::new(Kind::Died, to, from);
        (head.rank, head.flags) = (living_from - 1, fault::HOST_DIED);
        self.tell_agent(Frame { head, tail: obituary });
        self.record_peer(EventKind::Died, agent);
        // What was to pass through it, and what has waited for it.
        self.send_relayed_again();
        self.send_pieces();
        self.effects.push_back(Effect::Credited);
    }

    /// Refuses a frame for a host that is dead; gives it back when it is not.
    pub(super) fn refuse_dead(&mut self, frame: Frame) -> Option<Frame> {
        let Some(obituary) = self.pulse.obituary(frame.head.to.proc.host) else {
            return Some(frame);
        };
        let detail = obituary.clone();
        let head = frame.head;
        if head.kind == Kind::Watch {
            let proc = ProcId { host: head.to.proc.host, slot: head.rank };
            let mut died = Head::new(Kind::Died, head.from, Address { proc, port: PortId::NONE });
            died.rank = first_life(self.pulse.epoch(proc.host) + 1) - 1;
            died.flags = fault::HOST_DIED;
            self.dispatch(Frame { head: died, tail: detail });
        } else {
            self.refuse(&frame, &Closed { code: fault::HOST_DIED, detail });
        }
        None
    }
}
