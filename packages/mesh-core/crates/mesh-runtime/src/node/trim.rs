//! A process that has nothing to do keeps no room for what it once had to do.

use super::{Node, Port};

impl Node {
    /// Gives back the memory of queues that are empty, and of all that has grown and shrunk again.
    ///
    /// For whoever holds many nodes: the simulator. The first messages afterwards allocate anew.
    pub fn trim(&mut self) {
        self.effects.shrink_to_fit();
        self.deadlines.shrink_to_fit();
        self.pulse.trim();
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
