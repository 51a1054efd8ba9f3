//! The consequences of the deaths of processes and hosts.
//!
//! The agent of a host (slot 0) knows which of its processes are dead, and notifies their watchers.
//! A process that is notified of a death ends everything that it shared with the dead process: the
//! session, the calls, and references to shared memory.

use super::peer::LinkState;
use super::{Effect, Node};
use crate::events::EventKind;
use crate::fault;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, PortId, ProcId};

impl Node {
    /// Notes that the host reports the death of one of its processes.
    pub fn proc_died(&mut self, proc: ProcId, incarnation: u32, detail: Bytes) {
        let peer = self.peers.entry(proc).or_default();
        if incarnation < peer.incarnation.unwrap_or(peer.living_from) {
            return;
        }
        let watchers = std::mem::take(&mut peer.watchers);
        self.stop_collecting_proc(proc);
        self.discard_peer(proc, incarnation.saturating_add(1), fault::PROC_DIED, detail.clone());
        for watcher in watchers {
            self.send_died(watcher, proc, incarnation, (0, &detail));
        }
    }

    /// Notes that the host has started a process: frames to it wait until it connects.
    pub fn proc_started(&mut self, proc: ProcId, incarnation: u32) {
        let peer = self.peers.entry(proc).or_default();
        peer.incarnation = Some(incarnation);
        if matches!(peer.link_state, LinkState::Dead) {
            peer.link_state = LinkState::Idle;
        }
    }

    /// Ends the session with a dead process: its calls fail, its connection closes.
    pub(super) fn discard_peer(&mut self, proc: ProcId, living_from: u32, code: u8, detail: Bytes) {
        let peer = self.peers.entry(proc).or_default();
        peer.outstanding.clear();
        peer.is_watched = false;
        peer.exit_report = Some(Box::new(detail.clone()));
        self.end_session(proc, living_from, LinkState::Dead);
        self.early_messages.forget(proc);
        self.drop_postponed_to(proc);
        self.fail_calls_to(proc, code, &detail);
        self.note_capacity_anywhere();
        self.effects.push_back(Effect::PeerDied(proc));
        self.record_peer(EventKind::Died, proc);
    }

    /// Requests that the host of a process reports its death.
    ///
    /// This process receives the report at [`PortId::AGENT`], too.
    pub fn watch(&mut self, proc: ProcId) {
        let was_requested = std::mem::replace(&mut self.peer(proc).is_watched, true);
        if !was_requested {
            self.send_watch(proc, Bytes::new());
        }
    }

    /// Like [`Node::watch`], for one incarnation.
    ///
    /// The host reports its death even if that was long ago and the slot is in use again.
    pub fn watch_incarnation(&mut self, proc: ProcId, incarnation: u32) {
        self.send_watch(proc, Bytes::copy_from_slice(&incarnation.to_le_bytes()));
    }

    /// Requests the report of the death of a process to which a connection has opened.
    ///
    /// The report then precedes everything that the agent sends after the death. Otherwise a
    /// process that has not noticed yet that the connection is broken would send a call to the dead
    /// process, although the caller knows that it has been replaced.
    pub(super) fn watch_connected(&mut self, proc: ProcId) {
        if self.is_agent_of(proc) {
            return;
        }
        let peer = self.peer(proc);
        peer.is_watched = true;
        if let Some(incarnation) = peer.incarnation {
            self.watch_incarnation(proc, incarnation);
        }
    }

    /// Registers the watcher of a process on another host.
    ///
    /// Returns whether that host needs no request: the end of an agent is the end of its host,
    /// which the surviving hosts report.
    pub(super) fn register_remote_watch(&mut self, watch: &Head) -> bool {
        let proc = ProcId { host: watch.to.proc.host, slot: watch.rank };
        self.failure_detector.add_watcher(proc, watch.from);
        proc.slot == 0
    }

    fn send_watch(&mut self, proc: ProcId, incarnation: Bytes) {
        if proc.slot == 0 && (proc.host == self.config.me.host || self.config.me.slot == 0) {
            return;
        }
        let me = Address { proc: self.config.me, port: PortId::AGENT };
        let agent = Address { proc: proc.host.agent(), port: PortId::NONE };
        let mut head = Head::new(Kind::Watch, agent, me);
        head.rank = proc.slot;
        self.dispatch(Frame { head, tail: incarnation });
    }

    pub(super) fn deliver_watch(&mut self, frame: &Frame) {
        let head = &frame.head;
        let proc = ProcId { host: self.config.me.host, slot: head.rank };
        if proc == self.config.me {
            // The watcher is on another host, and its own agent reports the death of this host.
            return;
        }
        let peer = self.peers.entry(proc).or_default();
        // The process belongs to a later epoch of this host, at least.
        let living_from = peer.living_from.max(self.config.incarnation);
        let last = living_from.saturating_sub(1);
        let meant = frame.tail.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        let died = match (&peer.link_state, peer.incarnation) {
            (LinkState::Dead, _) => Some(peer.exit_report()),
            // No process was ever started in this slot.
            (_, None) => Some(Bytes::new()),
            // Another process occupies the slot already.
            (_, Some(_)) if meant.is_some_and(|meant| meant < living_from) => {
                Some(peer.exit_report())
            }
            (_, Some(_)) => None,
        };
        let is_lost = peer.incarnation.is_none() && self.is_from_former_epoch(proc);
        let flags = if is_lost { fault::HOST_DIED } else { 0 };
        let peer = self.peers.entry(proc).or_default();
        match died {
            Some(detail) => self.send_died(head.from, proc, last, (flags, &detail)),
            None if peer.watchers.contains(&head.from) => {}
            None => peer.watchers.push(head.from),
        }
    }

    fn send_died(&mut self, to: Address, proc: ProcId, last: u32, (code, detail): (u8, &Bytes)) {
        let from = Address { proc, port: PortId::NONE };
        let mut head = Head::new(Kind::Died, to, from);
        (head.rank, head.flags) = (last, code);
        self.dispatch(Frame { head, tail: detail.clone() });
    }

    /// Handles a report that a process died: ends the session and notifies the agent here.
    pub(super) fn deliver_died(&mut self, frame: &Frame) {
        let (proc, incarnation) = (frame.head.from.proc, frame.head.rank);
        if frame.head.flags == fault::HOST_DIED {
            // Withdraw now: the process may get a successor, whose calls must stay.
            self.withdraw_calls(proc);
        }
        let peer = self.peers.entry(proc).or_default();
        peer.is_watched = false;
        let is_old = incarnation < peer.incarnation.unwrap_or(peer.living_from);
        // The repeated report of its host is the same: no process has taken the slot.
        let is_still_dead = peer.incarnation.is_none()
            && incarnation.saturating_add(1) == peer.living_from
            && matches!(peer.link_state, LinkState::Dialling { .. });
        if (!is_old || is_still_dead) && !self.is_agent_of(proc) {
            let code = if frame.head.flags == 0 { fault::PROC_DIED } else { frame.head.flags };
            self.discard_peer(proc, incarnation.saturating_add(1), code, frame.tail.clone());
        } else if is_old
            && frame.head.flags != fault::HOST_DIED
            && proc.host != self.config.me.host
            && self.has_pending(proc)
        {
            // Messages sent since that report may have been lost in another death, which the host
            // was not requested to report.
            let peer = self.peer(proc);
            peer.is_watched = true;
            let living_from = peer.living_from;
            self.watch_incarnation(proc, living_from);
        }
        self.notify_agent(frame.clone());
    }

    /// Handles the report of a worker that its part in the job has ended.
    ///
    /// The root decides about the consequences and notifies the other hosts.
    pub(super) fn report_session_end(&mut self, agent: ProcId, incarnation: u32) {
        let is_known = self.failure_detector.exit_report(agent.host).is_some();
        if self.config.me.host.0 != 0 || is_known || incarnation < self.peer(agent).living_from {
            return;
        }
        let from = Address { proc: agent, port: PortId::NONE };
        let to = Address { proc: self.config.me, port: PortId::AGENT };
        let mut head = Head::new(Kind::Died, to, from);
        (head.rank, head.flags) = (incarnation, fault::STOPPED);
        self.notify_agent(Frame::bare(head));
    }
}
