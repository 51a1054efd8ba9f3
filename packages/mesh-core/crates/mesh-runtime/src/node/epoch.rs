//! Lives of hosts: a machine that takes the place of a dead one is the next epoch of the same host.
//!
//! Ids of processes name hosts and slots, so whoever holds one need not hear of the change. What
//! keeps the epochs apart are incarnations: the high bits of each are the epoch of its host. So a
//! host that comes back after it was taken for dead is an old incarnation of an agent, and is
//! treated as one: nothing of it is let in. It is told so in the greeting, and leaves.

use super::{Effect, LinkId, Node};
use crate::fault;
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind};
use mesh_wire::id::{Address, HostId, PortId, ProcId};

/// Bits of an incarnation that count the processes of a slot; the epoch of the host is above them.
const LIVES_BITS: u32 = 20;
/// The last epoch that a host can have.
pub const EPOCH_MAX: u32 = (1 << (u32::BITS - LIVES_BITS)) - 1;
/// Set in a greeting that only tells its receiver that it is dead.
pub(super) const FENCE: u8 = 1;

/// The incarnation of the agent of a host in an epoch, and of the first process in each slot.
pub const fn first_life(epoch: u32) -> u32 {
    if epoch > EPOCH_MAX { u32::MAX } else { epoch << LIVES_BITS }
}

/// The epoch of its host that an incarnation lives in.
pub const fn epoch_of(incarnation: u32) -> u32 {
    incarnation >> LIVES_BITS
}

impl Node {
    /// Which epoch of a host is spoken to: how many machines were in its place before, at least.
    pub fn host_epoch(&self, host: HostId) -> u32 {
        if host == self.config.me.host {
            return epoch_of(self.config.incarnation);
        }
        self.pulse.epoch(host)
    }

    /// Whether a host is taken for dead, and nobody is in its place.
    pub fn is_host_dead(&self, host: HostId) -> bool {
        self.pulse.obituary(host).is_some()
    }

    /// Another machine has taken the place of a host: what is sent there from now on is for it, and
    /// nothing of the one before is let in any more.
    pub fn host_back(&mut self, host: HostId, epoch: u32) {
        if host == self.config.me.host || epoch <= self.pulse.epoch(host) {
            return;
        }
        let is_agent = self.config.me.slot == 0;
        if is_agent && self.pulse.obituary(host).is_none() && self.knows(host) {
            // Nobody has told us that the one before is dead.
            self.host_died(host, Bytes::new());
        }
        self.pulse.host_back(host, epoch);
        self.peer(host.agent()).revive(first_life(epoch));
        for proc in self.known_of(host) {
            self.peer(proc).revive(first_life(epoch));
        }
        self.effects.push_back(Effect::Credited);
    }

    /// Whether a slot of this host was set aside on a machine that was in its place before: slots
    /// have the epoch in the same bits as incarnations.
    pub(super) fn is_of_former(&self, proc: ProcId) -> bool {
        epoch_of(proc.slot) < epoch_of(self.config.incarnation)
    }

    fn knows(&self, host: HostId) -> bool {
        self.peers.keys().any(|proc| proc.host == host)
    }

    /// All processes of a host that were ever spoken to, in order.
    pub(super) fn known_of(&self, host: HostId) -> Vec<ProcId> {
        let mut known: Vec<ProcId> =
            self.peers.keys().copied().filter(|proc| proc.host == host).collect();
        known.sort_unstable();
        known
    }

    /// A greeting for the agent of a host that was taken for dead: that nothing before `epoch`
    /// belongs to the job any more. It answers with a welcome, and leaves.
    pub fn fence(&self, host: HostId, epoch: u32) -> Frame {
        let agent = host.agent();
        let mut frame = self.greeting(agent, Kind::Hello, first_life(epoch), 0);
        frame.head.flags = FENCE;
        frame
    }

    /// Tells a host that has come back from the dead that it is dead, and hangs up.
    pub(super) fn turn_away(&mut self, id: LinkId, proc: ProcId) {
        let living_from = self.peer(proc).living_from;
        let mut frame = self.greeting(proc, Kind::Welcome, living_from, 0);
        frame.head.flags = FENCE;
        self.effects.push_back(Effect::Transmit { link: id, frame });
        self.close(id);
    }

    /// A host says that this process is not the root any more: it is as dead.
    pub(super) fn disowned(&mut self, host: HostId) {
        let obituary = self.pulse.give_up(host);
        self.host_died(host, obituary);
    }

    /// This host was taken for dead, and the job goes on without it: its agent hears of its own
    /// death, once.
    pub(super) fn fenced(&mut self) {
        if std::mem::replace(&mut self.is_fenced, true) {
            return;
        }
        let me = self.config.me;
        let from = Address { proc: me, port: PortId::NONE };
        let mut head = Head::new(Kind::Died, Address { proc: me, port: PortId::AGENT }, from);
        head.flags = fault::HOST_DIED;
        self.tell_agent(Frame::bare(head));
    }
}
