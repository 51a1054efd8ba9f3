//! Ids of message receivers.

use std::fmt;

/// One machine of a job. Host 0 runs the controller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct HostId(pub u32);

/// One process of a job: a slot on a host.
///
/// A slot outlives its process: a replacement takes the same slot with the next incarnation
/// (exchanged in the handshake), so handles that refer to the slot stay valid. Slot 0 of a host is
/// its agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ProcId {
    /// The machine.
    pub host: HostId,
    /// The slot on the machine.
    pub slot: u32,
}

impl HostId {
    /// The agent of the host: the process that manages it.
    pub const fn agent(self) -> ProcId {
        ProcId { host: self, slot: 0 }
    }
}

impl ProcId {
    /// The process in `slot` of the host numbered `host`.
    pub const fn new(host: u32, slot: u32) -> Self {
        Self { host: HostId(host), slot }
    }

    /// Both numbers in one word, the host in the upper half.
    pub const fn to_u64(self) -> u64 {
        ((self.host.0 as u64) << 32) | self.slot as u64
    }

    /// The inverse of [`ProcId::to_u64`].
    pub const fn from_u64(word: u64) -> Self {
        Self::new((word >> 32) as u32, word as u32)
    }
}

impl fmt::Display for ProcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.host.0, self.slot)
    }
}

/// A receiver inside a process: the mailbox of an actor, the reply port of a call, or a channel.
///
/// Numbers below [`PortId::FIRST_FREE`] are fixed. An actor mesh has one number, which is the same
/// in every process that it spans, so a mesh is addressed by (processes, port) and never by a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct PortId(pub u64);

impl PortId {
    /// No receiver: a message with this sender expects no reply.
    pub const NONE: Self = Self(0);
    /// The agent of the process, which spawns and stops its actors.
    pub const AGENT: Self = Self(1);
    /// The port that is notified of failures of meshes that actors of the process own.
    pub const SUPERVISION: Self = Self(2);
    /// The first number that is assigned to actors, calls and channels.
    pub const FIRST_FREE: u64 = 16;
}

/// One receiver of a job.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Address {
    /// The process that contains the receiver.
    pub proc: ProcId,
    /// The receiver in this process.
    pub port: PortId,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.proc, self.port.0)
    }
}

/// The id of a job. A handshake with another job is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct JobId(pub [u8; 16]);
