//! Links that leave the host: where other hosts are found, and how they are called.

use super::acknowledgement::Attempt;
use super::channel::Channel;
use super::dial::Route;
use super::gate::{Caller, Doorkeeper, Gate};
use super::wire::{Wire, lock};
use super::{Chores, Engine};
use crate::node::Node;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, ProcId};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long another host has to take a link, one attempt after the other: what is lost in a short
/// one costs little, and a long way or a busy host makes the long ones needed.
const DIAL_MAX: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(7)];

/// The engine, as the gate knows it: it does not keep it alive.
struct Keeper(Weak<Engine>);

impl Doorkeeper for Keeper {
    fn greeted(&self, caller: Caller) {
        let Some(engine) = self.0.upgrade() else { return };
        let (channel, hello) = caller.into_channel();
        if let Ok(wire) = wire_of(channel) {
            engine.add_caller(wire, hello);
        }
    }
}

impl Engine {
    /// Takes links from other hosts through a gate; who asks for this worker gets an answer of
    /// whoever takes requests from the gate.
    pub fn admit(self: &Arc<Self>, gate: &Gate) {
        gate.admit(Arc::new(Keeper(Arc::downgrade(self))));
    }

    /// What this process proves itself with to other hosts, from the next link on, unless the route
    /// to a host has credentials of its own.
    pub fn set_trust(&self, trust: Trust) {
        *lock(&self.trust) = Some(trust);
    }

    /// Says where another host listens, and which credentials it accepts if not those of
    /// [`Engine::set_trust`]; what waits for it is sent there.
    pub fn set_route(&self, host: HostId, route: Route, trust: Option<Trust>) {
        let is_behind_gateway = !route.gateway.is_empty();
        lock(&self.routes).insert(host, (route, trust));
        let agent = host.agent();
        self.with_node(|node| {
            node.set_behind_gateway(host, is_behind_gateway);
            // Who wanted to call it before had no number to call: they try again now.
            node.connect_failed(agent);
        });
    }

    /// Tells a host that was taken for dead that nothing of it before `epoch` belongs to the job,
    /// and waits until it says that it leaves.
    ///
    /// # Errors
    /// When nobody is there, or none of this job, or it does not answer in time.
    pub fn fence(
        &self,
        host: HostId,
        epoch: u32,
        route: &Route,
        trust: Option<Trust>,
        limit: Duration,
    ) -> io::Result<()> {
        let until = Instant::now() + limit;
        let trust = self.trust_or(trust).ok_or(io::ErrorKind::PermissionDenied)?;
        let mut channel = Channel::by(route, &trust, until)?;
        channel.expect(Role::Worker)?;
        channel.send(&self.with_node(|node| node.fence(host, epoch)), until)?;
        channel.first(&[Kind::Welcome], until).map(drop)
    }

    /// The credentials of a route, or those of the process.
    fn trust_or(&self, of_route: Option<Trust>) -> Option<Trust> {
        of_route.or_else(|| lock(&self.trust).clone())
    }

    /// Calls another host from a thread of its own, for that may take long.
    pub(super) fn connect_afar(&self, peer: ProcId) {
        // Without a route it is the other side that calls, or we are told the route later.
        let Some((route, trust)) = lock(&self.routes).get(&peer.host).cloned() else { return };
        let Some(engine) = self.this.upgrade() else { return };
        let dial = move || {
            let wire = engine.trust_or(trust);
            match wire.and_then(|trust| engine.call(peer.host, &route, &trust).ok()) {
                Some(wire) => drop(engine.add_wire(wire, |node| node.connected(peer))),
                None => engine.with_node(|node| node.connect_failed(peer)),
            }
        };
        let dialler = std::thread::Builder::new().name("mesh-dial".into()).stack_size(256 << 10);
        if dialler.spawn(dial).is_err() {
            self.with_node(|node| node.connect_failed(peer));
        }
    }

    /// Makes a connection that another host has opened a link, beginning with what it has sent.
    fn add_caller(&self, wire: Arc<Wire>, hello: Frame) {
        let link = self.add_wire(Arc::clone(&wire), Node::accepted_from_afar);
        let mut chores = Chores::default();
        {
            let mut shared = self.enter();
            shared.node.receive(link, hello);
            shared.collect(&mut chores, &*self.descriptors);
        }
        self.finish(chores);
    }

    /// Calls a worker until it has taken a link, or refuses, or has had all the time there is.
    fn call(&self, host: HostId, route: &Route, trust: &Trust) -> io::Result<Arc<Wire>> {
        let mut late = io::ErrorKind::TimedOut.into();
        for limit in DIAL_MAX {
            match self.call_once(host, route, trust, Instant::now() + limit) {
                Ok(channel) => {
                    channel.expect(Role::Worker)?;
                    return wire_of(channel);
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => late = error,
                Err(error) => return Err(error),
            }
        }
        Err(late)
    }

    fn call_once(
        &self,
        host: HostId,
        route: &Route,
        trust: &Trust,
        until: Instant,
    ) -> io::Result<Channel> {
        let attempt = Attempt::begin(&self.acknowledgements, host);
        let stream = Channel::reached(route, trust, until)?;
        let _dialling = self.dialling(host, &stream);
        drop(attempt);
        Channel::proved(stream, trust, until)
    }
}

fn wire_of(channel: Channel) -> io::Result<Arc<Wire>> {
    Ok(Arc::new(Wire::afar(channel)?))
}
