//! TCP listeners for other machines; they start when the first handle leaves the process.

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

/// The maximum number of pending connections.
const BACKLOG: i32 = 1024;
/// The default number of connections that carry one transfer.
const TCP_STREAMS: usize = 2;
const TCP_STREAMS_MAX: usize = 16;
/// The addresses on which to listen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// All addresses of this machine if the job has credentials, otherwise loopback.
    #[default]
    Auto,
    /// All addresses of this machine.
    All,
    /// Loopback only.
    Loopback,
    /// One address.
    At(IpAddr),
}

/// The network options of the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The addresses on which to listen.
    pub listen: Listen,
    /// The number of connections that carry one transfer; `None` selects the default.
    pub tcp_streams: Option<usize>,
}

/// The TCP listeners of this process.
#[derive(Debug, Default)]
pub(crate) struct TcpListeners {
    options: Mutex<Options>,
    /// Whether handles may be sent to other machines, over authenticated and encrypted connections.
    has_credentials: AtomicBool,
    current: Mutex<Option<Current>>,
}

/// The listener in new handles.
#[derive(Debug)]
struct Current {
    scope: Scope,
    identity: Identity,
    descriptor: Arc<PeerDescriptor>,
}

/// The clients that can reach a listener.
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
    /// Sets the options; returns false if it is too late to change the listen address.
    pub fn configure(&self, wanted: Options) -> bool {
        let current = lock(&self.tcp_listeners.current);
        let mut options = lock(&self.tcp_listeners.options);
        let is_in_time = current.is_none() || options.listen == wanted.listen;
        if is_in_time {
            *options = wanted;
        }
        is_in_time
    }

    /// Records that the job has credentials and may span machines: from now on, [`Listen::Auto`]
    /// means all addresses of this machine. Until then, it means loopback.
    pub fn set_has_credentials(&self) {
        self.tcp_listeners.has_credentials.store(true, Ordering::Relaxed);
    }

    /// The number of connections that carry one transfer.
    pub(crate) fn tcp_streams(&self) -> usize {
        let wanted = lock(&self.tcp_listeners.options).tcp_streams;
        wanted.unwrap_or(TCP_STREAMS).clamp(1, TCP_STREAMS_MAX)
    }

    /// The descriptor of this process for a handle that leaves it; from now on, the process
    /// listens.
    ///
    /// # Errors
    /// The system does not permit listening on the configured address.
    pub fn public_descriptor(self: &Arc<Self>) -> Result<Arc<PeerDescriptor>, DataError> {
        let mut current = lock(&self.tcp_listeners.current);
        let scope = self.tcp_listeners.scope();
        let identity = match current.take() {
            Some(known) if known.scope == scope => {
                return Ok(Arc::clone(&current.insert(known).descriptor));
            }
            // Handles that were sent previously contain the old listener, which stays open.
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
        Ok(PeerDescriptor { fingerprint, port, addresses, ..self.descriptor().clone() })
    }
}

/// Opens a listener; returns it with the addresses under which other processes reach it.
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
            // Without IPv6 support, it listens on IPv4 only.
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
