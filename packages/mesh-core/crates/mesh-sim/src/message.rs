//! What programs in a world say to each other: words, so that nothing hides in an encoding.

use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::id::{PortId, ProcId};

/// One process from its start to its death, numbered in the order of the starts.
pub type Life = u32;

/// Words as bytes.
pub fn pack(words: &[u64]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(words.len() * 8);
    for word in words {
        bytes.put_u64_le(*word);
    }
    bytes.freeze()
}

/// The words in bytes, when there are exactly that many.
pub fn unpack<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, rest) = bytes.as_chunks::<8>();
    let chunks: &[[u8; 8]; N] = chunks.try_into().ok()?;
    rest.is_empty().then(|| chunks.map(u64::from_le_bytes))
}

/// What an endpoint does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Answers at once.
    Echo = 0,
    /// Raises.
    Raise = 1,
    /// Answers after a while.
    Slow = 2,
    /// Never answers; only asked for with a deadline.
    Silent = 3,
    /// Fails its actor.
    Crash = 4,
    /// Calls another mesh and answers when that has.
    Nested = 5,
    /// Ends its process.
    Exit = 6,
}

impl Work {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Echo, Self::Raise, Self::Slow, Self::Silent, Self::Crash, Self::Nested, Self::Exit];
}

/// A message to an actor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errand {
    /// Who sends it.
    pub sender: Life,
    /// The line that it stands in: messages of one sender and line arrive in order.
    pub line: u64,
    /// Its place in the line.
    pub serial: u64,
    /// Names the message in the whole world.
    pub tag: u64,
    /// What is to be done.
    pub work: Work,
}

impl Errand {
    /// As it travels.
    pub fn encode(&self) -> Bytes {
        pack(&[u64::from(self.sender), self.line, self.serial, self.tag, self.work as u64])
    }

    /// The inverse of [`Errand::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let [sender, line, serial, tag, work] = unpack(bytes)?;
        let work = *Work::ALL.get(work as usize)?;
        Some(Self { sender: sender as Life, line, serial, tag, work })
    }
}

/// Processes of a world as a box: hosts by slots. A slice is described, never enumerated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Region {
    /// The first host.
    pub host: u32,
    /// How many hosts.
    pub hosts: u32,
    /// The first slot on each.
    pub slot: u32,
    /// How many slots on each.
    pub slots: u32,
}

impl Region {
    /// How many processes.
    pub fn count(&self) -> u32 {
        self.hosts * self.slots
    }

    /// The process of a rank.
    pub fn proc(&self, rank: u32) -> ProcId {
        ProcId::new(self.host + rank / self.slots, self.slot + rank % self.slots)
    }
}

/// What an agent needs to start an actor: the meta of a spawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Birth {
    /// Messages that one process may have outstanding; first, because the node reads it too.
    pub window: u32,
    /// Its actors call only meshes of a higher level, so that no two wait for each other.
    pub level: u32,
    /// The mesh in its owner's process.
    pub child: u64,
    /// Its owner.
    pub owner: PortId,
    /// Which incarnation of the owner's process asked.
    pub incarnation: u32,
    /// Whether an actor takes messages while it works.
    pub is_concurrent: bool,
}

impl Birth {
    /// As it travels.
    pub fn encode(&self) -> Bytes {
        let first = u64::from(self.window) | u64::from(self.level) << 32;
        let last = u64::from(self.incarnation) | u64::from(self.is_concurrent) << 32;
        pack(&[first, self.child, self.owner.0, last])
    }

    /// The inverse of [`Birth::encode`].
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

/// What an agent is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Stop an actor.
    Stop(PortId),
    /// Put a process into a slot in which one with this incarnation died.
    Replace {
        /// The slot.
        slot: u32,
        /// The incarnation that died.
        died: u32,
    },
}

impl Order {
    /// As it travels.
    pub fn encode(&self) -> Bytes {
        match *self {
            Self::Stop(port) => pack(&[0, port.0, 0]),
            Self::Replace { slot, died } => pack(&[1, u64::from(slot), u64::from(died)]),
        }
    }

    /// The inverse of [`Order::encode`].
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match unpack(bytes)? {
            [0, port, 0] => Some(Self::Stop(PortId(port))),
            [1, slot, died] => Some(Self::Replace { slot: slot as u32, died: died as u32 }),
            _ => None,
        }
    }
}

/// The number of the failure that is the death of a process.
pub fn death(proc: ProcId, incarnation: u32) -> u64 {
    1 << 63 | u64::from(proc.host.0) << 40 | u64::from(proc.slot) << 20 | u64::from(incarnation)
}
