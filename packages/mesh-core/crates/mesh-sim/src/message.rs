//! Payloads of messages between programs of a world, encoded as plain 64-bit words.

use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::id::{PortId, ProcId};

/// One process from its start to its death, numbered in the order of the starts.
pub type Life = u32;

/// Encodes words as bytes.
pub fn pack(words: &[u64]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(words.len() * 8);
    for word in words {
        bytes.put_u64_le(*word);
    }
    bytes.freeze()
}

/// Decodes bytes that contain exactly `N` words.
pub fn unpack<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let chunks: &[[u8; 8]; N] = chunks.try_into().ok()?;
    rest.is_empty().then(|| chunks.map(u64::from_le_bytes))
}

/// The behavior of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Replies immediately.
    Echo = 0,
    /// Raises an exception.
    Raise = 1,
    /// Replies after a delay.
    Slow = 2,
    /// Replies only after the deadline of the caller, which every call of it has.
    Silent = 3,
    /// Fails the actor.
    Crash = 4,
    /// Calls another mesh and replies when that call completes.
    Nested = 5,
    /// Terminates the process.
    Exit = 6,
}

impl Work {
    /// All kinds of work, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Echo, Self::Raise, Self::Slow, Self::Silent, Self::Crash, Self::Nested, Self::Exit];
}

/// The payload of a message to an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// The sender.
    pub sender: Life,
    /// The stream that the message belongs to: messages of one sender and stream arrive in order.
    pub line: u64,
    /// The sequence number in the stream.
    pub serial: u64,
    /// An id of the message that is unique in the world.
    pub tag: u64,
    /// The work that the endpoint performs.
    pub work: Work,
}

impl Task {
    /// Encodes the payload.
    pub fn encode(&self) -> Bytes {
        pack(&[u64::from(self.sender), self.line, self.serial, self.tag, self.work as u64])
    }

    /// The inverse of [`Task::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [sender, line, serial, tag, work] = unpack(bytes)?;
        let work = *Work::ALL.get(work as usize)?;
        Some(Self { sender: sender as Life, line, serial, tag, work })
    }
}

/// A rectangular region of processes: hosts by slots. A slice is described, never enumerated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Region {
    /// The first host.
    pub host: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// The first slot on each host.
    pub slot: u32,
    /// Number of slots on each host.
    pub slots: u32,
}

impl Region {
    /// Number of processes.
    pub fn count(&self) -> u32 {
        self.hosts * self.slots
    }

    /// The process of a rank.
    pub fn proc(&self, rank: u32) -> ProcId {
        ProcId::new(self.host + rank / self.slots, self.slot + rank % self.slots)
    }
}

/// The parameters with which an agent starts an actor: the metadata of a spawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpawnParameters {
    /// Messages that one process may have outstanding. This is the first word, because the node
    /// reads it, too.
    pub window: u32,
    /// The level of the mesh. Its actors call only meshes of a higher level, so that calls form no
    /// cycle.
    pub level: u32,
    /// The id of the mesh in the process of its owner.
    pub child: u64,
    /// The owner.
    pub owner: PortId,
    /// The incarnation of the owner's process that requested the spawn.
    pub incarnation: u32,
    /// Whether an actor takes further messages while it works.
    pub is_concurrent: bool,
}

impl SpawnParameters {
    /// Encodes the parameters.
    pub fn encode(&self) -> Bytes {
        let first = u64::from(self.window) | u64::from(self.level) << 32;
        let last = u64::from(self.incarnation) | u64::from(self.is_concurrent) << 32;
        pack(&[first, self.child, self.owner.0, last])
    }

    /// The inverse of [`SpawnParameters::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [first, child, owner, last] = unpack(bytes)?;
        Some(Self {
            window: first as u32,
            level: (first >> 32) as u32,
            child,
            owner: PortId(owner),
            incarnation: last as u32,
            is_concurrent: last >> 32 != 0,
        })
    }
}

/// A request to an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AgentRequest {
    /// Stop an actor.
    Stop(PortId),
    /// Start a new process in a slot whose process with this incarnation died.
    Replace {
        /// The slot.
        slot: u32,
        /// The incarnation that died.
        died: u32,
    },
}

impl AgentRequest {
    /// Encodes the request.
    pub fn encode(&self) -> Bytes {
        match *self {
            Self::Stop(port) => pack(&[0, port.0, 0]),
            Self::Replace { slot, died } => pack(&[1, u64::from(slot), u64::from(died)]),
        }
    }

    /// The inverse of [`AgentRequest::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            [0, port, 0] => Some(Self::Stop(PortId(port))),
            [1, slot, died] => Some(Self::Replace { slot: slot as u32, died: died as u32 }),
            _ => None,
        }
    }
}

/// The failure id of the death of a process.
pub fn death(proc: ProcId, incarnation: u32) -> u64 {
    1 << 63 | u64::from(proc.host.0) << 40 | u64::from(proc.slot) << 20 | u64::from(incarnation)
}
