//! The origin of a message, which may precede the meta of a call or a post.
//!
//! The layout is specified in `docs/protocol/call.md`.

use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::PortId;

/// Length in bytes of an origin that contains only the sender.
pub const SENDER_LEN: usize = 8;
/// Length in bytes of an origin that also contains the trace, the span and the flags.
pub const TRACED_LEN: usize = SENDER_LEN + 25;

/// Bit of the first byte of a meta with an origin; the other bits are the length of the origin.
const MARK: u8 = 0x80;
/// Offset of the span id in an origin.
const SPAN_AT: usize = SENDER_LEN + 16;
/// Flag, in the first byte of a call's meta, of calls that are internal to Mesh.
const INTERNAL: u8 = 4;

/// The meta of a message, split into its fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Meta<'a> {
    /// The origin of the message; empty if the message has none.
    pub origin: &'a [u8],
    /// The rest of the meta.
    pub rest: &'a [u8],
}

impl<'a> Meta<'a> {
    /// Splits the meta of a frame.
    pub fn of(frame: &'a Frame) -> Self {
        Self::read(frame.head.kind, frame.meta())
    }

    /// Splits the meta of a message of the given kind.
    pub fn read(kind: Kind, meta: &'a [u8]) -> Self {
        if let (Kind::Call | Kind::Post, Some((first, behind))) = (kind, meta.split_first())
            && first & MARK != 0
            && let Some((origin, rest)) = behind.split_at_checked(usize::from(first & !MARK))
        {
            return Self { origin, rest };
        }
        Self { origin: &[], rest: meta }
    }

    /// Returns the actor that sent the message, or [`PortId::NONE`].
    ///
    /// The sender is unknown if the message was sent outside of actors or has no origin.
    pub fn sender(&self) -> PortId {
        self.origin.first_chunk().map_or(PortId::NONE, |bytes| PortId(u64::from_le_bytes(*bytes)))
    }

    /// Returns trace, span and flags as in W3C Trace Context, if the message was sent in a span.
    pub fn trace(&self) -> Option<&'a [u8]> {
        (self.origin.len() == TRACED_LEN).then(|| &self.origin[SENDER_LEN..])
    }

    /// Returns the id of the span in which the message was sent; 0 for none.
    pub fn span(&self) -> u64 {
        let bytes = self.origin.get(SPAN_AT..).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// Returns the name of the endpoint in a call to an actor; empty for other messages.
    pub fn endpoint(&self) -> &'a [u8] {
        match self.rest.split_first() {
            Some((flags, named)) if flags & INTERNAL == 0 => {
                named.split(|byte| *byte == 0).next().unwrap_or_default()
            }
            _ => &[],
        }
    }
}

/// Prepends an origin to a meta; `None` if the origin has an invalid length.
pub fn with_origin(origin: &[u8], meta: &[u8]) -> Option<Vec<u8>> {
    matches!(origin.len(), SENDER_LEN | TRACED_LEN).then(|| {
        // Fits into 7 bits: both lengths are small.
        let first = MARK | origin.len() as u8;
        [&[first], origin, meta].concat()
    })
}
