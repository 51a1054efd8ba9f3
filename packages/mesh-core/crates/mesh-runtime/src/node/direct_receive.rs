//! Direct receive: large parts of messages from other hosts are written to shared memory.
//!
//! All processes of this host that the message is for then read the same pages. The driver provides
//! the memory: it receives the pieces as [`Effect::WriteDirect`] and reports
//! [`Node::body_received`] when it has written all of them. Only then is the frame complete, and
//! the frames queued behind it proceed.

use super::bulk::{Assembly, BulkId};
use super::{Effect, Node};
use crate::cast::CastHeader;
use bytes::{Bytes, BytesMut};
use mesh_wire::frame::{Kind, PART_LEN, Part};
use mesh_wire::id::ProcId;

/// The parts of a long frame for processes of this host, and their position in the frame.
#[derive(Debug)]
pub(super) struct DirectParts {
    /// The receivers of the message.
    readers: Vec<ProcId>,
    /// Offset of the first part in the message, after meta, descriptors and body.
    parts_at: usize,
    /// Offset of the descriptors in the message.
    descriptors_at: usize,
    part_count: usize,
    /// Number of bytes that the driver was given.
    received_len: usize,
}

/// Where the parts of a message were finally stored.
#[derive(Debug)]
pub enum ReceivedBody {
    /// In a segment of this process, which the readers hold.
    Shared(Part),
    /// In private memory of this process, because no other memory was available.
    Plain(Bytes),
}

impl DirectParts {
    /// Decides which part of a message is written to shared memory, given its beginning.
    ///
    /// Returns `None` if parts are less than half of the message, or if this process itself reads
    /// it.
    pub(super) fn of(assembly: &Assembly, begin: &Bytes, me: ProcId) -> Option<Self> {
        let head = &assembly.head;
        let (meta_len, part_count, readers) = if head.kind == Kind::Cast {
            let start = [&assembly.tail[..], &begin[..]].concat().into();
            let (header, _) = CastHeader::decode(&start)?;
            let slots = header.on(me.host).map(|(slot, _)| ProcId { host: me.host, slot });
            (header.meta_len, header.part_count, slots.collect())
        } else {
            (head.meta_len, head.part_count, vec![head.to.proc])
        };
        let is_for_others = |reader: &ProcId| reader.host == me.host && *reader != me;
        if readers.is_empty() || !readers.iter().all(is_for_others) {
            return None;
        }
        let descriptors_at = usize::from(meta_len);
        let body_at = descriptors_at + usize::from(part_count) * PART_LEN;
        let (parts, _) = begin.get(descriptors_at..body_at)?.as_chunks::<PART_LEN>();
        let parts: Vec<Part> = parts.iter().map(Part::decode).collect();
        let first = parts.first().filter(|part| part.segment == Part::INLINE)?;
        let parts_at = body_at.checked_add(usize::try_from(first.offset).ok()?)?;
        let is_behind = |part: &Part| part.segment == Part::INLINE && part.offset >= first.offset;
        let is_much = parts_at <= (assembly.len - assembly.start_len) / 2;
        (parts_at <= begin.len() && is_much && parts.iter().all(is_behind)).then_some(Self {
            readers,
            parts_at,
            descriptors_at,
            part_count: parts.len(),
            received_len: 0,
        })
    }

    /// Returns the number of bytes that the driver was given.
    pub(super) fn received_len(&self) -> usize {
        self.received_len
    }
}

impl Node {
    /// Declares that the driver stores arriving parts for processes of this host in shared memory.
    pub fn enable_direct_receive(&mut self) {
        self.bulks.is_direct_receive_enabled = true;
    }

    /// Handles an arriving piece of a message that is written to shared memory.
    pub(super) fn write_direct(&mut self, id: BulkId, piece: &Bytes) {
        let Some(assembly) = self.bulks.assembly(id) else { return };
        let (start_len, whole) = (assembly.start_len, assembly.len);
        let Some(direct_parts) = &mut assembly.direct_parts else { return };
        let mut bytes = piece.clone();
        if direct_parts.received_len == 0 && assembly.tail.len() == start_len {
            assembly.tail.extend_from_slice(&bytes.split_to(direct_parts.parts_at));
        }
        let (at, len) = (direct_parts.received_len, whole - start_len - direct_parts.parts_at);
        direct_parts.received_len += bytes.len();
        self.effects.push_back(Effect::WriteDirect { id, len, at, bytes });
    }

    /// Returns the receivers of a message that was stored in shared memory.
    pub fn readers_of(&mut self, id: BulkId) -> Vec<ProcId> {
        let direct_parts =
            self.bulks.assembly(id).and_then(|assembly| assembly.direct_parts.as_ref());
        direct_parts.map_or_else(Vec::new, |direct_parts| direct_parts.readers.clone())
    }

    /// Notes that all pieces of [`Effect::WriteDirect`] are written: the readers get the message.
    pub fn body_received(&mut self, id: BulkId, body: ReceivedBody) {
        let Some(assembly) = self.bulks.assembly(id) else { return };
        let Some(direct_parts) = assembly.direct_parts.take() else { return };
        match body {
            ReceivedBody::Plain(bytes) => assembly.tail.extend_from_slice(&bytes),
            ReceivedBody::Shared(all) => {
                let at = assembly.start_len + direct_parts.descriptors_at;
                relocate_parts(
                    &mut assembly.tail,
                    at..at + direct_parts.part_count * PART_LEN,
                    &all,
                );
            }
        }
        self.assembled(id);
    }
}

/// Changes the descriptors of parts after the body to their current location.
fn relocate_parts(tail: &mut BytesMut, descriptors: std::ops::Range<usize>, all: &Part) {
    let (descriptors, _) = tail[descriptors].as_chunks_mut::<PART_LEN>();
    let Some(first) = descriptors.first().map(|first| Part::decode(first).offset) else { return };
    for descriptor in descriptors {
        let part = Part::decode(descriptor);
        let offset = all.offset + part.offset - first;
        *descriptor = Part { offset, len: part.len, ..*all }.encode();
    }
}
