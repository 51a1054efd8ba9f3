//! What messages hold of shared memory, until somebody opens them.
//!
//! A part of the sender's segment is held by the receiver from the moment it was sent, and given
//! back with a release; so is a part of a segment of the host's agent, where a message from another
//! host has landed. A part of the receiver's own segment, which the sender hands back, is held by
//! the receiver from the moment that it has it: the sender's own release comes behind it.

use super::call::PendingCall;
use super::{Effect, Node};
use mesh_wire::frame::{Frame, Hold};
use mesh_wire::id::ProcId;

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
        let (me, sender, reader) = (self.config.me, frame.head.from.proc, frame.head.to.proc);
        let agent = ProcId { host: me.host, slot: 0 };
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

    pub(super) fn discard_answers(&mut self, call: &PendingCall) {
        for answer in call.answers() {
            self.discard(&answer.frame);
        }
    }
}
