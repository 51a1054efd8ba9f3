//! A listening socket and its accept loop.

use crate::client::happy_eyeballs::prepare;
use crate::connection::close_on_fork::note;
use crate::connection::socket::Socket;
use crate::copy::attach::peer_credentials;
use crate::domain::Domain;
use crate::security::authentication::AuthenticationMode;
use crate::server::admission::{Origin, Refusal};
use crate::server::connection_handler::{self, in_thread};
use rustix::net::{SocketFlags, accept_with};
use rustls::ServerConfig;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The pause after a failed `accept`, for example because the process has no free descriptors.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A listening socket of this process, which stays open until the process exits.
#[derive(Debug)]
pub(crate) enum Listener {
    /// A Unix domain socket, for processes of the same user.
    Local(OwnedFd),
    /// A TCP port, and the certificate for clients that do not connect from loopback.
    Tcp(OwnedFd, Arc<ServerConfig>),
}

impl Listener {
    /// Runs the accept loop in a new thread.
    pub(crate) fn start(self, domain: &Arc<Domain>) -> io::Result<()> {
        note(self.socket().as_fd());
        let name = match self {
            Self::Local(_) => "mesh-rdma-local",
            Self::Tcp(..) => "mesh-rdma-tcp",
        };
        let domain = Arc::clone(domain);
        in_thread(name, move || {
            loop {
                match accept_with(self.socket(), SocketFlags::CLOEXEC) {
                    Ok(connection) => self.receive(&domain, connection),
                    Err(_) => {
                        domain.limiter.evict();
                        thread::sleep(RETRY_PAUSE);
                    }
                }
            }
        })
    }

    fn socket(&self) -> &OwnedFd {
        match self {
            Self::Local(socket) | Self::Tcp(socket, _) => socket,
        }
    }

    /// Starts to serve a connection, unless its peer is not permitted or a limit is reached.
    fn receive(&self, domain: &Arc<Domain>, connection: OwnedFd) {
        let (origin, mode) = match self {
            Self::Local(_) => {
                let peer = peer_credentials(connection.as_fd());
                // Root is refused, too: a process of another user belongs to another job.
                if !peer.is_ok_and(|peer| peer.is_this_user()) {
                    return domain.refusals.count(Refusal::OtherUser);
                }
                (Origin::Local, AuthenticationMode::Local)
            }
            Self::Tcp(_, config) => match tcp_mode(&connection, config) {
                Some(mode) => (Origin::Tcp, mode),
                None => return domain.refusals.count(Refusal::Silent),
            },
        };
        let socket = Arc::new(Socket::open(connection));
        match domain.limiter.admit(origin, &socket) {
            Some(permit) => connection_handler::start(domain, socket, permit, mode),
            None => domain.refusals.count(Refusal::Evicted),
        }
    }
}

/// Selects the mode of a connection. Connections on loopback are not encrypted; all others are,
/// regardless of the address that the peer specifies. Returns `None` if the peer has disconnected.
fn tcp_mode(connection: &OwnedFd, config: &Arc<ServerConfig>) -> Option<AuthenticationMode> {
    prepare(connection.as_fd()).ok()?;
    let stream = TcpStream::from(connection.try_clone().ok()?);
    let (from, to) = (stream.peer_addr().ok()?, stream.local_addr().ok()?);
    let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    Some(if is_loopback(from) && is_loopback(to) {
        AuthenticationMode::Loopback { port: to.port() }
    } else {
        AuthenticationMode::Network(Arc::clone(config))
    })
}
