//! Host epochs: a machine that replaces a dead one is the next epoch of the same host.
//!
//! Process ids contain hosts and slots, so holders of an id need not be notified of the
//! replacement. Incarnations separate the epochs: the high bits of each are the epoch of its host.
//! A host that returns after it was declared dead is therefore an old incarnation of an agent, and
//! is treated as one: none of its frames are accepted. The greeting notifies it, and it leaves.

use super::{Effect, LinkId, Node};
use crate::fault;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};

/// Bits of an incarnation that count the processes of a slot; the bits above are the host's epoch.
const PROC_COUNT_BITS: u32 = 20;
/// The last epoch that a host can have.
pub const EPOCH_MAX: u32 = (1 << (u32::BITS - PROC_COUNT_BITS)) - 1;
/// Flag of a greeting that only notifies its receiver that it is dead.
pub(super) const FENCE: u8 = 1;

/// Returns the first incarnation in each slot of a host in an epoch, including its agent's.
pub const fn first_incarnation(epoch: u32) -> u32 {
    if epoch > EPOCH_MAX { u32::MAX } else { epoch << PROC_COUNT_BITS }
}

/// Returns the epoch of the host in which an incarnation lives.
pub const fn epoch_of(incarnation: u32) -> u32 {
    incarnation >> PROC_COUNT_BITS
}

impl Node {
    /// Returns the known epoch of a host.
    ///
    /// This is the minimum number of machines that served as this host before.
    pub fn host_epoch(&self, host: HostId) -> u32 {
        if host == self.config.me.host {
            return epoch_of(self.config.incarnation);
        }
        self.failure_detector.epoch(host)
    }

    /// Whether a host was declared dead and was not replaced yet.
    pub fn is_host_dead(&self, host: HostId) -> bool {
        self.failure_detector.exit_report(host).is_some()
    }

    /// Notes that another machine has replaced a host.
    ///
    /// Frames sent from now on are for the new machine, and no frame of the previous one is
    /// accepted.
    pub fn host_replaced(&mut self, host: HostId, epoch: u32) {
        if host == self.config.me.host || epoch <= self.failure_detector.epoch(host) {
            return;
        }
        let is_agent = self.config.me.slot == 0;
        if is_agent && self.failure_detector.exit_report(host).is_none() && self.has_peer_on(host) {
            // The death of the previous machine has not been reported.
            self.host_died(host, Bytes::new());
        }
        self.failure_detector.host_replaced(host, epoch);
        self.peer(host.agent()).host_replaced(first_incarnation(epoch));
        for proc in self.peers_on(host) {
            self.peer(proc).host_replaced(first_incarnation(epoch));
        }
        self.note_capacity_anywhere();
    }

    /// Whether a slot of this host was reserved on a machine that served as this host before.
    ///
    /// Slots contain the epoch in the same bits as incarnations.
    pub(super) fn is_from_former_epoch(&self, proc: ProcId) -> bool {
        epoch_of(proc.slot) < epoch_of(self.config.incarnation)
    }

    fn has_peer_on(&self, host: HostId) -> bool {
        self.peers.keys().any(|proc| proc.host == host)
    }

    /// Returns all known processes of a host, sorted.
    pub(super) fn peers_on(&self, host: HostId) -> Vec<ProcId> {
        let mut known: Vec<ProcId> =
            self.peers.keys().copied().filter(|proc| proc.host == host).collect();
        known.sort_unstable();
        known
    }

    /// Returns a greeting for the agent of a host that was declared dead.
    ///
    /// It reports that nothing before `epoch` belongs to the job any more. The agent replies with a
    /// welcome, and leaves.
    pub fn fence(&self, host: HostId, epoch: u32) -> Frame {
        let agent = host.agent();
        let mut frame = self.greeting(agent, Kind::Hello, first_incarnation(epoch), 0);
        frame.head.flags = FENCE;
        frame
    }

    /// Notifies a host that has returned that it was declared dead, and closes the connection.
    pub(super) fn fence_peer(&mut self, id: LinkId, proc: ProcId) {
        let living_from = self.peer(proc).living_from;
        let mut frame = self.greeting(proc, Kind::Welcome, living_from, 0);
        frame.head.flags = FENCE;
        self.effects.push_back(Effect::Transmit { link: id, frame });
        self.close(id);
    }

    /// Handles the notice of a host that this process is no longer the root.
    ///
    /// For this process the host then counts as dead.
    pub(super) fn host_taken_over(&mut self, host: HostId) {
        let exit_report = self.failure_detector.stop_monitoring(host);
        self.host_died(host, exit_report);
    }

    /// Notes that this host was declared dead and the job continues without it.
    ///
    /// The agent of this host is notified of the declared death, once.
    pub(super) fn handle_fence(&mut self) {
        if std::mem::replace(&mut self.is_fenced, true) {
            return;
        }
        let me = self.config.me;
        let from = Address { proc: me, port: PortId::NONE };
        let mut head = Head::new(Kind::Died, Address { proc: me, port: PortId::AGENT }, from);
        head.flags = fault::HOST_DIED;
        self.notify_agent(Frame::bare(head));
    }
}
