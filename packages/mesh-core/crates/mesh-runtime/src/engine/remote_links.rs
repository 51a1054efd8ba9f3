//! Connections to other hosts: routes, credentials, and how they are opened and accepted.

use super::acknowledgement::Attempt;
use super::channel::Channel;
use super::dial::Route;
use super::listener::{AcceptedConnection, GreetingHandler, Listener};
use super::wire::{Wire, lock};
use super::{DeferredEffects, Engine};
use crate::node::Node;
use mesh_trust::{Role, Trust};
use mesh_wire::frame::{Frame, Kind};
use mesh_wire::id::{HostId, ProcId};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time limits of successive attempts to connect to another host.
///
/// A lost packet in a short attempt costs little, and a distant or busy host needs the long ones.
const DIAL_MAX: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(7)];

/// The weak reference of the listener to the engine, which does not keep it alive.
struct EngineHandler(Weak<Engine>);

impl GreetingHandler for EngineHandler {
    fn handle_greeting(&self, connection: AcceptedConnection) {
        let Some(engine) = self.0.upgrade() else { return };
        let (channel, hello) = connection.into_channel();
        if let Ok(wire) = wire_of(channel) {
            engine.add_accepted(wire, hello);
        }
    }
}

impl Engine {
    /// Accepts connections from other hosts through a listener.
    ///
    /// The owner of the listener handles requests for this worker.
    pub fn admit(self: &Arc<Self>, listener: &Listener) {
        listener.admit(Arc::new(EngineHandler(Arc::downgrade(self))));
    }

    /// Sets the default credentials for other hosts, from the next connection on.
    ///
    /// Credentials of a route take precedence.
    pub fn set_trust(&self, trust: Trust) {
        *lock(&self.trust) = Some(trust);
    }

    /// Sets the route to another host, and the credentials that it accepts.
    ///
    /// Without `trust` these are the credentials of [`Engine::set_trust`]. Pending frames for the
    /// host are sent along the route.
    pub fn set_route(&self, host: HostId, route: Route, trust: Option<Trust>) {
        let is_behind_gateway = !route.gateway.is_empty();
        lock(&self.routes).insert(host, (route, trust));
        let agent = host.agent();
        self.with_node(|node| {
            node.set_behind_gateway(host, is_behind_gateway);
            // Earlier attempts had no address: try again now.
            node.connect_failed(agent);
        });
    }

    /// Notifies a host that was declared dead, and waits until it confirms that it leaves.
    ///
    /// Nothing of the host before `epoch` belongs to the job any more.
    ///
    /// # Errors
    /// If the host cannot be reached, is not part of this job, or does not reply in time.
    pub fn fence(
        &self,
        host: HostId,
        epoch: u32,
        route: &Route,
        trust: Option<Trust>,
        limit: Duration,
    ) -> io::Result<()> {
        let until = Instant::now() + limit;
        let trust = self.trust_for(trust).ok_or(io::ErrorKind::PermissionDenied)?;
        let mut channel = Channel::connect_route(route, &trust, until)?;
        channel.expect(Role::Worker)?;
        channel.send(&self.with_node(|node| node.fence(host, epoch)), until)?;
        channel.receive_first(&[Kind::Welcome], until).map(drop)
    }

    /// Returns the credentials of a route, or the credentials of the process.
    fn trust_for(&self, of_route: Option<Trust>) -> Option<Trust> {
        of_route.or_else(|| lock(&self.trust).clone())
    }

    /// Connects to another host from a dedicated thread, because that may take long.
    pub(super) fn connect_remote(&self, peer: ProcId) {
        // Without a route either the other side connects, or the route is set later.
        let Some((route, trust)) = lock(&self.routes).get(&peer.host).cloned() else { return };
        let Some(engine) = self.this.upgrade() else { return };
        let dial = move || {
            let wire = engine.trust_for(trust);
            match wire.and_then(|trust| engine.connect_repeatedly(peer.host, &route, &trust).ok()) {
                Some(wire) => drop(engine.add_wire(wire, |node| node.connected(peer))),
                None => engine.with_node(|node| node.connect_failed(peer)),
            }
        };
        let dialler = std::thread::Builder::new().name("mesh-dial".into()).stack_size(256 << 10);
        if dialler.spawn(dial).is_err() {
            self.with_node(|node| node.connect_failed(peer));
        }
    }

    /// Adds a connection that another host has opened, starting with its first frame.
    fn add_accepted(&self, wire: Arc<Wire>, hello: Frame) {
        let link = self.add_wire(Arc::clone(&wire), Node::accepted_remote);
        let mut deferred = DeferredEffects::default();
        {
            let mut shared = self.enter();
            shared.node.receive(link, hello);
            shared.collect(&mut deferred, &*self.descriptors);
        }
        self.finish(deferred);
    }

    /// Connects to a worker until it accepts, refuses, or all time limits have passed.
    fn connect_repeatedly(
        &self,
        host: HostId,
        route: &Route,
        trust: &Trust,
    ) -> io::Result<Arc<Wire>> {
        let mut late = io::ErrorKind::TimedOut.into();
        for limit in DIAL_MAX {
            match self.connect_once(host, route, trust, Instant::now() + limit) {
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

    fn connect_once(
        &self,
        host: HostId,
        route: &Route,
        trust: &Trust,
        until: Instant,
    ) -> io::Result<Channel> {
        let attempt = Attempt::begin(&self.acknowledgements, host);
        let stream = Channel::open_route(route, trust, until)?;
        let _dialling = self.dialling(host, &stream);
        drop(attempt);
        Channel::authenticate(stream, trust, until)
    }
}

fn wire_of(channel: Channel) -> io::Result<Arc<Wire>> {
    Ok(Arc::new(Wire::remote(channel)?))
}
