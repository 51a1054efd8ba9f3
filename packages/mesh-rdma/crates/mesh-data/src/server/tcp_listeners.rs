//! How this process is reached from other machines: from the first handle on that leaves it.

use crate::connection::peer_descriptor::PeerDescriptor;
use crate::domain::{Domain, lock};
use crate::error::DataError;
use crate::security::identity::Identity;
use crate::server::interfaces::{interfaces, to_be_tried};
use crate::server::listener::Listener;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How many may wait until they are accepted.
const BACKLOG: i32 = 1024;
/// How many connections carry one transfer.
const TCP_STREAMS: usize = 2;
const TCP_STREAMS_MAX: usize = 16;
/// Where to listen for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// At all addresses of this machine where the job has credentials, else on loopback.
    #[default]
    Auto,
    /// At all addresses of this machine.
    All,
    /// For processes of this machine only.
    Loopback,
    /// At one address.
    At(IpAddr),
}

/// What the user has to say about the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where to listen for others.
    pub listen: Listen,
    /// How many connections carry one transfer; as many as are good for this machine if left out.
    pub tcp_streams: Option<usize>,
}

/// Where this process listens, once it does.
#[derive(Debug, Default)]
pub(crate) struct TcpListeners {
    options: Mutex<Options>,
    /// Whether handles go to other machines, over connections that are proven and secret.
    has_credentials: AtomicBool,
    current: Mutex<Option<Current>>,
}

/// The listener that new handles name.
#[derive(Debug)]
struct Current {
    scope: Scope,
    identity: Identity,
    descriptor: Arc<PeerDescriptor>,
}

/// Which clients can reach a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Everywhere,
    Loopback,
    At(IpAddr),
}

impl TcpListeners {
    fn scope(&self) -> Scope {
        match lock(&self.options).listen {
            Listen::At(address) => Scope::At(address),
            Listen::Auto if self.has_credentials.load(Ordering::Relaxed) => Scope::Everywhere,
            Listen::All => Scope::Everywhere,
            Listen::Auto | Listen::Loopback => Scope::Loopback,
        }
    }
}

impl Domain {
    /// Says where to listen and by how many connections to copy; tells whether it was in time.
    pub fn configure(&self, wanted: Options) -> bool {
        let current = lock(&self.tcp_listeners.current);
        let mut options = lock(&self.tcp_listeners.options);
        let is_in_time = current.is_none() || options.listen == wanted.listen;
        if is_in_time {
            *options = wanted;
        }
        is_in_time
    }

    /// The job has credentials, so that it may span machines: [`Listen::Auto`] means all addresses
    /// of this machine from now on. Before, it is loopback alone.
    pub fn set_has_credentials(&self) {
        self.tcp_listeners.has_credentials.store(true, Ordering::Relaxed);
    }

    /// How many connections carry one transfer.
    pub(crate) fn tcp_streams(&self) -> usize {
        let wanted = lock(&self.tcp_listeners.options).tcp_streams;
        wanted.unwrap_or(TCP_STREAMS).clamp(1, TCP_STREAMS_MAX)
    }

    /// Who this process is, for a handle that leaves it: it listens for others from now on.
    ///
    /// # Errors
    /// The system does not let it listen there.
    pub fn public_card(self: &Arc<Self>) -> Result<Arc<PeerDescriptor>, DataError> {
        let mut current = lock(&self.tcp_listeners.current);
        let scope = self.tcp_listeners.scope();
        let identity = match current.take() {
            Some(known) if known.scope == scope => {
                return Ok(Arc::clone(&current.insert(known).descriptor));
            }
            // Handles that were sent before name the old listener, which goes on.
            Some(known) => known.identity,
            None => Identity::make()?,
        };
        let descriptor = Arc::new(self.begin_to_listen(scope, &identity)?);
        *current = Some(Current { scope, identity, descriptor: Arc::clone(&descriptor) });
        Ok(descriptor)
    }

    fn begin_to_listen(
        self: &Arc<Self>,
        scope: Scope,
        identity: &Identity,
    ) -> Result<PeerDescriptor, DataError> {
        let opened = || -> io::Result<_> {
            let (listener, addresses) = open(scope)?;
            let port = listener.local_addr()?.port();
            let config = Arc::clone(&identity.config);
            Listener::Tcp(OwnedFd::from(listener), config).start(self)?;
            Ok((port, addresses))
        };
        let (port, addresses) =
            opened().map_err(DataError::system("cannot listen for other processes"))?;
        let fingerprint = identity.fingerprint;
        Ok(PeerDescriptor { fingerprint, port, addresses, ..self.card().clone() })
    }
}

/// Listens; gives the addresses at which others find it.
fn open(scope: Scope) -> io::Result<(TcpListener, Vec<IpAddr>)> {
    match scope {
        Scope::Loopback => {
            let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            Ok((listener(address)?, vec![address]))
        }
        Scope::At(address) if !address.is_unspecified() => Ok((listener(address)?, vec![address])),
        Scope::At(address) => {
            let mut found = interfaces()?;
            found.retain(|one| one.address.is_ipv4() == address.is_ipv4());
            Ok((listener(address)?, to_be_tried(found)))
        }
        Scope::Everywhere => {
            let mut found = interfaces()?;
            // Where there is no IPv6, the older one has to do.
            let listener = match listener(Ipv6Addr::UNSPECIFIED.into()) {
                Ok(both) => both,
                Err(_) => {
                    found.retain(|one| one.address.is_ipv4());
                    listener(Ipv4Addr::UNSPECIFIED.into())?
                }
            };
            Ok((listener, to_be_tried(found)))
        }
    }
}

fn listener(address: IpAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        sockopt::set_ipv6_v6only(&fd, false)?;
    }
    bind(&fd, &SocketAddr::new(address, 0))?;
    listen(&fd, BACKLOG)?;
    Ok(TcpListener::from(fd))
}
