//! The header that precedes the message in the tail of a [`Kind::Cast`] frame.
//!
//! All numbers are little-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | bytes of this header |
//! | 4 | kind of the message: 16 a call, 21 a post, 24 a spawn |
//! | 5 | 1 if each host replies once for its ranks, otherwise 0 |
//! | 6..8 | bytes of meta at the start of the message |
//! | 8 | part descriptors after the meta |
//! | 9..16 | 0 |
//! | 16..24 | port |
//! | 24.. | boxes of 36 bytes: see [`Group`] |

use super::groups::{GROUP_LEN, Group};
use crate::hash::FastMap;
use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::frame::{Kind, PART_LEN};
use mesh_wire::id::{HostId, PortId};

/// Bytes before the boxes.
const FIXED_LEN: usize = 24;

/// The header of a cast: what to deliver, and to which ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CastHeader {
    /// The kind of message that each rank gets: a call, a post or a spawn.
    pub kind: Kind,
    /// Each host replies once for all its ranks.
    pub is_merged: bool,
    /// Bytes of meta at the start of the message.
    pub meta_len: u16,
    /// Part descriptors after the meta.
    pub part_count: u8,
    /// The port, the same in all processes.
    pub port: PortId,
    /// The ranks.
    pub groups: Vec<Group>,
}

impl CastHeader {
    /// Encodes the header.
    pub fn encode(&self) -> Bytes {
        let len = FIXED_LEN + self.groups.len() * GROUP_LEN;
        let mut out = BytesMut::with_capacity(len);
        out.put_u32_le(u32::try_from(len).expect("a mesh has fewer than 2^26 boxes"));
        out.put_u8(self.kind as u8);
        out.put_u8(u8::from(self.is_merged));
        out.put_u16_le(self.meta_len);
        out.put_u8(self.part_count);
        out.put_bytes(0, 7);
        out.put_u64_le(self.port.0);
        for group in &self.groups {
            group.encode(&mut out);
        }
        out.freeze()
    }

    /// Splits a tail into the header and the message.
    pub fn decode(tail: &Bytes) -> Option<(Self, Bytes)> {
        let fixed: &[u8; FIXED_LEN] = tail.first_chunk()?;
        let len = u32::from_le_bytes(*fixed.first_chunk()?) as usize;
        let groups = tail.get(FIXED_LEN..len)?.as_chunks::<GROUP_LEN>();
        let kind = match Kind::from_u8(fixed[4])? {
            kind @ (Kind::Call | Kind::Post | Kind::Spawn) => kind,
            _ => return None,
        };
        let meta_len = u16::from_le_bytes([fixed[6], fixed[7]]);
        let part_count = fixed[8];
        let is_whole = groups.1.is_empty()
            && usize::from(meta_len) + usize::from(part_count) * PART_LEN <= tail.len() - len;
        let header = Self {
            kind,
            is_merged: fixed[5] == 1,
            meta_len,
            part_count,
            port: PortId(u64::from_le_bytes(*fixed.last_chunk()?)),
            groups: groups.0.iter().map(|bytes| Group::decode(bytes)).collect::<Option<_>>()?,
        };
        is_whole.then(|| (header, tail.slice(len..)))
    }

    /// Returns the port of an encoded header without decoding the rest.
    pub fn port_of(tail: &[u8]) -> Option<PortId> {
        let fixed: &[u8; FIXED_LEN] = tail.first_chunk()?;
        Some(PortId(u64::from_le_bytes(*fixed.last_chunk()?)))
    }

    /// Returns the hosts of all boxes, each once, in order.
    pub fn hosts(&self) -> Vec<HostId> {
        let mut seen = FastMap::default();
        let hosts = self.groups.iter().flat_map(Group::hosts);
        hosts.filter(|host| seen.insert(*host, ()).is_none()).collect()
    }

    /// Returns slot and rank of each target on one host.
    pub fn on(&self, host: HostId) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.groups.iter().flat_map(move |group| group.on(host))
    }
}
