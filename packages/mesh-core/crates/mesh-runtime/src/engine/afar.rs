//! Links that leave the host: where other hosts are found, and how they are called.

use super::gate::{Caller, Doorkeeper, Gate, wire_of};
use super::wire::{Reach, Wire, lock};
use super::{Chores, Engine};
use mesh_wire::frame::Frame;
use mesh_wire::id::{HostId, ProcId};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long one address of a host has to answer.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// The engine, as the gate knows it: it does not keep it alive.
struct Keeper(Weak<Engine>);

impl Doorkeeper for Keeper {
    fn greeted(&self, caller: Caller) {
        let Some(engine) = self.0.upgrade() else { return };
        if let Ok((wire, hello)) = wire_of(caller) {
            engine.add_caller(wire, hello);
        }
    }
}

impl Engine {
    /// Takes links from other hosts through a gate; who asks for this worker gets `refusal`.
    pub fn admit(self: &Arc<Self>, gate: &Gate, refusal: Frame) {
        gate.admit(Arc::new(Keeper(Arc::downgrade(self))), refusal);
    }

    /// Says where another host listens; what waits for it is sent there.
    pub fn set_route(&self, host: HostId, addresses: Vec<SocketAddr>) {
        lock(&self.routes).insert(host, addresses);
        let agent = ProcId { host, slot: 0 };
        // Who wanted to call it before had no number to call: they try again now.
        self.with_node(|node| node.connect_failed(agent));
    }

    /// Calls another host from a thread of its own, for that may take long.
    pub(super) fn connect_afar(&self, peer: ProcId) {
        // Without a route it is the other side that calls, or we are told the route later.
        let Some(addresses) = lock(&self.routes).get(&peer.host).cloned() else { return };
        let Some(engine) = self.this.upgrade() else { return };
        let dial = move || match dialled(&addresses) {
            Ok(wire) => engine.add_wire(wire, |node| node.connected(peer)),
            Err(_) => engine.with_node(|node| node.connect_failed(peer)),
        };
        let dialler = std::thread::Builder::new().name("mesh-dial".into()).stack_size(256 << 10);
        if dialler.spawn(dial).is_err() {
            self.with_node(|node| node.connect_failed(peer));
        }
    }

    /// Makes a connection that another host has opened a link, beginning with what it has sent.
    fn add_caller(&self, wire: Arc<Wire>, hello: Frame) {
        let mut link = None;
        self.add_wire(Arc::clone(&wire), |node| {
            let id = node.accepted_from_afar();
            link = Some(id);
            id
        });
        let Some(link) = link else { return };
        let mut chores = Chores::default();
        {
            let mut shared = self.enter();
            shared.node.receive(link, hello);
            shared.collect(&mut chores);
        }
        self.finish(chores);
    }
}

/// A connection to the first of `addresses` that takes one.
pub(super) fn connected(addresses: &[SocketAddr], limit: Duration) -> io::Result<TcpStream> {
    let mut failure = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match TcpStream::connect_timeout(address, limit.min(CONNECT_MAX)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn dialled(addresses: &[SocketAddr]) -> io::Result<Arc<Wire>> {
    let stream = connected(addresses, CONNECT_MAX)?;
    Ok(Arc::new(Wire::new(stream.into(), Reach::Afar)?))
}
