//! Release of memory that an idle process no longer needs.

use super::{Node, Port};

impl Node {
    /// Frees the memory of empty queues and the spare capacity of collections that have shrunk.
    ///
    /// The simulator uses this because it holds many nodes. The first messages afterwards allocate
    /// again.
    pub fn trim(&mut self) {
        self.effects.shrink_to_fit();
        self.deadlines.shrink_to_fit();
        self.failure_detector.trim();
        for port in self.ports.values_mut() {
            match port {
                Port::Mailbox(mailbox) => mailbox.trim(),
                Port::Call(_) => {}
            }
        }
        for peer in self.peers.values_mut() {
            peer.trim();
        }
    }
}
