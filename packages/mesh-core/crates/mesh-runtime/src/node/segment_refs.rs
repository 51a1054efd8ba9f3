//! References of messages to shared memory, until the messages are opened.
//!
//! The receiver holds a part of the sender's segment from the moment the message was sent, and
//! returns it with a release. The same applies to a part of a segment of the host's agent, into
//! which a message from another host was received. A part of the receiver's own segment, which the
//! sender hands back, is held by the receiver from the moment that the message arrives: the
//! sender's own release follows the message.

use super::call::PendingCall;
use super::{Effect, Node};
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Kind, SegmentRef};
use mesh_wire::id::{Address, PortId, ProcId};

/// Marker that precedes the label of each port in the body of a message.
///
/// These 16 bytes do not occur elsewhere by chance.
pub const PORT_MARK: [u8; 16] = *b"\x00mesh-port\x93\x1f\xd4\x07\xe8\xa5";

impl Node {
    /// Holds the parts of our own segments that an arriving message hands back.
    pub(super) fn acquire_own_segments(&mut self, frame: &Frame) {
        for SegmentRef { owner, segment, generation } in frame.segment_refs() {
            if owner == self.config.me {
                self.effects.push_back(Effect::Acquired { segment, generation });
            }
        }
    }

    /// Releases the shared memory of a message that will never be opened.
    pub(super) fn discard(&mut self, frame: &Frame) {
        self.report_ports(frame);
        let (me, sender, reader) = (self.config.me, frame.head.from.proc, frame.head.to.proc);
        let agent = me.host.agent();
        for SegmentRef { owner, segment, generation } in frame.segment_refs() {
            if owner == me {
                // It arrived here, or it was sent from here and never left.
                self.effects.push_back(Effect::Released { reader, segment, generation });
            } else if owner == sender || owner == agent {
                self.release(owner, segment, generation);
            }
            // Otherwise it belongs to the receiver, which has not received it.
        }
    }

    /// Hands the body of a message that will never be opened to the agent if it carries ports.
    ///
    /// The receivers of these ports have to be notified that nothing will arrive from them.
    fn report_ports(&mut self, frame: &Frame) {
        let carries = matches!(frame.head.kind, Kind::Call | Kind::Post | Kind::Reply)
            && frame.body().windows(PORT_MARK.len()).any(|bytes| bytes == PORT_MARK);
        if carries {
            let from = Address { proc: self.config.me, port: PortId::NONE };
            let mut head = Head::new(frame.head.kind, frame.head.to, from);
            head.rank = frame.head.rank;
            self.notify_agent(Frame { head, tail: frame.body() });
        }
    }

    pub(super) fn discard_replies(&mut self, call: &PendingCall) {
        for reply in call.replies() {
            self.discard(&reply.frame);
        }
    }

    /// Sends the descriptor of one of our segments, unless the peer has it.
    ///
    /// Returns `false` if the peer is not on this host and cannot have it.
    pub fn announce(&mut self, proc: ProcId, segment: u32) -> bool {
        if proc.host != self.config.me.host {
            return false;
        }
        if proc != self.config.me && self.peer(proc).announced.insert(segment) {
            let from = Address { proc: self.config.me, port: PortId::NONE };
            let mut head = Head::new(Kind::Segment, Address { proc, port: PortId::NONE }, from);
            head.rank = segment;
            self.dispatch(Frame::bare(head));
        }
        true
    }

    /// Sends the descriptor of one of our segments to the readers that do not have it.
    ///
    /// If the segment is new, it is sent to all readers on this host.
    pub fn announce_all(&mut self, segment: u32, is_new: bool, readers: &[ProcId]) {
        if is_new {
            for peer in self.peers.values_mut() {
                peer.announced.remove(&segment);
            }
        }
        for reader in readers {
            self.announce(*reader, segment);
        }
    }

    /// Releases a part of a segment to the process that owns it.
    pub fn release(&mut self, owner: ProcId, segment: u32, generation: u32) {
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let to = Address { proc: owner, port: PortId::NONE };
        let mut head = Head::new(Kind::Release, to, from);
        head.rank = segment;
        let tail = Bytes::copy_from_slice(&generation.to_le_bytes());
        self.dispatch(Frame { head, tail });
    }
}
