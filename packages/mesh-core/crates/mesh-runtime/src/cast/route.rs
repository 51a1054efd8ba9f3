//! The route of a frame that hosts forward: the header in the tail of a [`Kind::Relay`] frame.
//!
//! The frame belongs to the session of its origin with each of the hosts, and has a sequence number
//! in each. The hosts form a [`Tree`] in the order of the list, below the origin at place 0. All
//! numbers are little-endian.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | bytes of this header |
//! | 4..8 | host of the origin |
//! | 8..10 | fanout |
//! | 10 | kind of the frame |
//! | 11..16 | 0 |
//! | 16.. | runs of 24 bytes: first host, step, count, 0, number of the frame (8 bytes) |

use super::Tree;
use bytes::{BufMut, Bytes, BytesMut};
use mesh_wire::frame::Kind;
use mesh_wire::id::HostId;

const FIXED_LEN: usize = 16;
const RUN_LEN: usize = 24;
/// Maximum number of hosts of a route.
const HOSTS_MAX: u32 = 1 << 20;

/// Consecutive places of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    first: u32,
    step: u32,
    count: u32,
    seq: u64,
}

impl Run {
    fn host(&self, index: u32) -> HostId {
        HostId(self.first.wrapping_add(self.step.wrapping_mul(index)))
    }
}

/// The hosts that a frame passes through, and its sequence number for each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The host that sent the frame.
    pub origin: HostId,
    /// Number of hosts to which each host forwards it.
    pub fanout: u16,
    /// The kind of the frame.
    pub kind: Kind,
    runs: Vec<Run>,
    count: u32,
}

impl Route {
    /// Creates a route without hosts.
    pub fn new(origin: HostId, fanout: u16, kind: Kind) -> Self {
        Self { origin, fanout: fanout.max(1), kind, runs: Vec::new(), count: 0 }
    }

    /// Adds a host at the next place.
    pub fn push(&mut self, host: HostId, seq: u64) {
        self.count += 1;
        if let Some(last) = self.runs.last_mut()
            && last.seq == seq
        {
            if last.count == 1 {
                last.step = host.0.wrapping_sub(last.first);
            }
            if last.host(last.count) == host {
                last.count += 1;
                return;
            }
        }
        self.runs.push(Run { first: host.0, step: 0, count: 1, seq });
    }

    /// Returns the tree, with the origin at place 0.
    pub fn tree(&self) -> Tree {
        Tree::new(self.count as usize + 1, usize::from(self.fanout))
    }

    /// Returns the host at a place other than 0.
    pub fn host(&self, place: usize) -> Option<HostId> {
        let mut left = u32::try_from(place.checked_sub(1)?).ok()?;
        for run in &self.runs {
            if left < run.count {
                return Some(run.host(left));
            }
            left -= run.count;
        }
        None
    }

    /// Returns the place of a host, and the sequence number of the frame for it.
    pub fn place_of(&self, host: HostId) -> Option<(usize, u64)> {
        let mut before = 1;
        for run in &self.runs {
            let distance = i64::from(host.0) - i64::from(run.first);
            let step = i64::from(run.step.cast_signed());
            let index = match (distance, step) {
                (0, _) => Some(0),
                (_, 0) => None,
                _ if distance % step == 0 => u32::try_from(distance / step).ok(),
                _ => None,
            };
            if let Some(index) = index.filter(|index| *index < run.count) {
                return Some((before + index as usize, run.seq));
            }
            before += run.count as usize;
        }
        None
    }

    /// Encodes the header, followed by the tail of the frame.
    pub fn encode(&self, tail: &[u8]) -> Bytes {
        let len = FIXED_LEN + self.runs.len() * RUN_LEN;
        let mut out = BytesMut::with_capacity(len + tail.len());
        out.put_u32_le(u32::try_from(len).expect("a route has at most 2^20 runs"));
        out.put_u32_le(self.origin.0);
        out.put_u16_le(self.fanout);
        out.put_u8(self.kind as u8);
        out.put_bytes(0, 5);
        for run in &self.runs {
            out.put_u32_le(run.first);
            out.put_u32_le(run.step);
            out.put_u32_le(run.count);
            out.put_u32_le(0);
            out.put_u64_le(run.seq);
        }
        out.put_slice(tail);
        out.freeze()
    }

    /// Splits a tail into the header and the tail of the frame.
    pub fn decode(tail: &Bytes) -> Option<(Self, Bytes)> {
        let fixed: &[u8; FIXED_LEN] = tail.first_chunk()?;
        let word = |at: usize| {
            u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        let len = word(0) as usize;
        let (runs, rest) = tail.get(FIXED_LEN..len)?.as_chunks::<RUN_LEN>();
        let kind = match Kind::from_u8(fixed[10])? {
            kind @ (Kind::Cast | Kind::Piece) => kind,
            _ => return None,
        };
        let fanout = u16::from_le_bytes([fixed[8], fixed[9]]);
        let mut route = Self::new(HostId(word(4)), fanout, kind);
        for run in runs {
            let run = decode_run(run);
            route.count = route.count.checked_add(run.count).filter(|count| *count <= HOSTS_MAX)?;
            route.runs.push(run);
        }
        (rest.is_empty() && fanout > 0).then(|| (route, tail.slice(len..)))
    }
}

fn decode_run(bytes: &[u8; RUN_LEN]) -> Run {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let seq = bytes.last_chunk().map_or(0, |seq| u64::from_le_bytes(*seq));
    Run { first: word(0), step: word(4), count: word(8), seq }
}
