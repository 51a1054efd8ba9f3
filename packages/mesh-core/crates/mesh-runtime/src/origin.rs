//! Where a message comes from: what may stand in front of the meta of a call or a post.
//!
//! The bytes are those of `docs/protocol/call.md`.

use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::PortId;

/// Bytes of an origin that names the sender alone.
pub const SENDER_LEN: usize = 8;
/// Bytes of an origin with the span that the message was sent in: its trace, itself, its flags.
pub const TRACED_LEN: usize = SENDER_LEN + 25;

/// The first byte of a meta with an origin: this bit, and how long the origin is.
const MARK: u8 = 0x80;
/// Where the number of the span stands in an origin.
const SPAN_AT: usize = SENDER_LEN + 16;
/// The flag, in the first byte of a call's meta, of what Mesh asks of actors by itself.
const INTERNAL: u8 = 4;

/// The meta of a message, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta<'a> {
    /// Where the message comes from; empty when it does not say.
    pub origin: &'a [u8],
    /// What is left.
    pub rest: &'a [u8],
}

impl<'a> Meta<'a> {
    /// That of a frame.
    pub fn of(frame: &'a Frame) -> Self {
        Self::read(frame.head.kind, frame.meta())
    }

    /// Takes the meta of a message of some kind apart.
    pub fn read(kind: Kind, meta: &'a [u8]) -> Self {
        if let (Kind::Call | Kind::Post, Some((first, behind))) = (kind, meta.split_first())
            && first & MARK != 0
            && let Some((origin, rest)) = behind.split_at_checked(usize::from(first & !MARK))
        {
            return Self { origin, rest };
        }
        Self { origin: &[], rest: meta }
    }

    /// The actor that has sent the message; none outside of actors, or when it does not say.
    pub fn sender(&self) -> PortId {
        self.origin.first_chunk().map_or(PortId::NONE, |bytes| PortId(u64::from_le_bytes(*bytes)))
    }

    /// Trace, span and flags as W3C has them, for a message that was sent in a span.
    pub fn trace(&self) -> Option<&'a [u8]> {
        (self.origin.len() == TRACED_LEN).then(|| &self.origin[SENDER_LEN..])
    }

    /// The number of the span that it was sent in; 0 for none.
    pub fn span(&self) -> u64 {
        let bytes = self.origin.get(SPAN_AT..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// The name of the endpoint, in the meta of a call to an actor; empty when there is none.
    pub fn endpoint(&self) -> &'a [u8] {
        match self.rest.split_first() {
            Some((flags, named)) if flags & INTERNAL == 0 => {
                named.split(|byte| *byte == 0).next().unwrap_or_default()
            }
            _ => &[],
        }
    }
}

/// Puts an origin in front of a meta; `None` when it has another length than origins have.
pub fn with_origin(origin: &[u8], meta: &[u8]) -> Option<Vec<u8>> {
    matches!(origin.len(), SENDER_LEN | TRACED_LEN).then(|| {
        // In 7 bits: both lengths are small.
        let first = MARK | origin.len() as u8;
        [&[first], origin, meta].concat()
    })
}
