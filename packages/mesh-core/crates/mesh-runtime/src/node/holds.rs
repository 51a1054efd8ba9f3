//! What messages hold of shared memory, until somebody opens them.
//!
//! A part of the sender's segment is held by the receiver from the moment it was sent, and given
//! back with a release; so is a part of a segment of the host's agent, where a message from another
//! host has landed. A part of the receiver's own segment, which the sender hands back, is held by
//! the receiver from the moment that it has it: the sender's own release comes behind it.

use super::call::PendingCall;
use super::{Effect, Node};
use bytes::Bytes;
use mesh_wire::frame::{Frame, Head, Hold, Kind};
use mesh_wire::id::{Address, PortId, ProcId};

/// What the body of a message has before the label of each port in it: 16 bytes that are nowhere
/// else by chance.
pub const PORT_MARK: [u8; 16] = *b"\x00mesh-port\x93\x1f\xd4\x07\xe8\xa5";

impl Node {
    /// Holds what a message that has come in hands back of our own segments.
    pub(super) fn hold_own(&mut self, frame: &Frame) {
        for Hold { owner, segment, generation } in frame.holds() {
            if owner == self.config.me {
                self.effects.push_back(Effect::Held { segment, generation });
            }
        }
    }

    /// Gives back what a message that nobody will open holds of shared memory.
    pub(super) fn discard(&mut self, frame: &Frame) {
        self.report_ports(frame);
        let (me, sender, reader) = (self.config.me, frame.head.from.proc, frame.head.to.proc);
        let agent = me.host.agent();
        for Hold { owner, segment, generation } in frame.holds() {
            if owner == me {
                // It came here, or it came from here and never left.
                self.effects.push_back(Effect::Released { reader, segment, generation });
            } else if owner == sender || owner == agent {
                self.release(owner, segment, generation);
            }
            // Else it is the receiver's, which has not seen it.
        }
    }

    /// Hands the body of a message that nobody will open to the agent if it carries ports: whoever
    /// waits for what is sent to them has to hear that nothing comes.
    fn report_ports(&mut self, frame: &Frame) {
        let carries = matches!(frame.head.kind, Kind::Call | Kind::Post | Kind::Answer)
            && frame.body().windows(PORT_MARK.len()).any(|bytes| bytes == PORT_MARK);
        if carries {
            let from = Address { proc: self.config.me, port: PortId::NONE };
            let mut head = Head::new(frame.head.kind, frame.head.to, from);
            head.rank = frame.head.rank;
            self.tell_agent(Frame { head, tail: frame.body() });
        }
    }

    pub(super) fn discard_answers(&mut self, call: &PendingCall) {
        for answer in call.answers() {
            self.discard(&answer.frame);
        }
    }

    /// Sends the descriptor of one of our segments, unless the peer has it. `false` when the peer
    /// is not on this host and cannot have it.
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

    /// Sends the descriptor of one of our segments to those of this host that do not have it; to
    /// all of them when it is a new one.
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

    /// Gives a part of a segment back to the process that owns it.
    pub fn release(&mut self, owner: ProcId, segment: u32, generation: u32) {
        let from = Address { proc: self.config.me, port: PortId::NONE };
        let to = Address { proc: owner, port: PortId::NONE };
        let mut head = Head::new(Kind::Release, to, from);
        head.rank = segment;
        let tail = Bytes::copy_from_slice(&generation.to_le_bytes());
        self.dispatch(Frame { head, tail });
    }
}
