//! How this process is reached from other machines: from the first handle on that leaves it.

use crate::call::prepare;
use crate::card::Card;
use crate::descriptor;
use crate::domain::{Domain, lock};
use crate::door::{self, Entrance};
use crate::error::DataError;
use crate::identity::Identity;
use crate::interfaces::{interfaces, to_be_tried};
use crate::lobby::Lobby;
use crate::socket::Socket;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};
use rustls::ServerConfig;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

/// How many may wait until they are accepted.
const BACKLOG: i32 = 1024;
/// How many connections carry one transfer.
const TCP_STREAMS: usize = 2;
const TCP_STREAMS_MAX: usize = 16;
/// How long to wait after the system could not accept somebody: for want of descriptors, say.
const PAUSE: Duration = Duration::from_millis(50);

/// Where to listen for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Listen {
    /// At all addresses of this machine.
    #[default]
    Auto,
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

/// The card as others get it, once this process listens.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    options: Mutex<Options>,
    card: OnceLock<Arc<Card>>,
    begun: Mutex<()>,
}

impl Domain {
    /// Says where to listen and by how many connections to copy; tells whether it was in time.
    pub fn configure(&self, wanted: Options) -> bool {
        let mut options = lock(&self.listening.options);
        let is_in_time = self.listening.card.get().is_none() || options.listen == wanted.listen;
        if is_in_time {
            *options = wanted;
        }
        is_in_time
    }

    /// How many connections carry one transfer.
    pub(crate) fn tcp_streams(&self) -> usize {
        let wanted = lock(&self.listening.options).tcp_streams;
        wanted.unwrap_or(TCP_STREAMS).clamp(1, TCP_STREAMS_MAX)
    }

    /// Who this process is, for a handle that leaves it: it listens for others from now on.
    ///
    /// # Errors
    /// The system does not let it listen there.
    pub fn public_card(self: &Arc<Self>) -> Result<Arc<Card>, DataError> {
        if let Some(card) = self.listening.card.get() {
            return Ok(Arc::clone(card));
        }
        let _begun = lock(&self.listening.begun);
        if let Some(card) = self.listening.card.get() {
            return Ok(Arc::clone(card));
        }
        let card = Arc::new(self.begin_to_listen(lock(&self.listening.options).listen)?);
        Ok(Arc::clone(self.listening.card.get_or_init(|| card)))
    }

    fn begin_to_listen(self: &Arc<Self>, listen: Listen) -> Result<Card, DataError> {
        let identity = Identity::make()?;
        let (listener, addresses) =
            open(listen).map_err(DataError::system("cannot listen for other machines"))?;
        let address = listener.local_addr();
        let port = address.map_err(DataError::system("cannot listen for other machines"))?.port();
        let fingerprint = identity.fingerprint;
        let domain = Arc::clone(self);
        let accept = move || accept_all(&domain, &listener, &identity.config);
        door::in_thread("mesh-rdma-net", accept)
            .map_err(DataError::system("cannot listen for other machines"))?;
        Ok(Card { fingerprint, port, addresses, ..self.card().clone() })
    }
}

/// Listens; gives the addresses at which others find it.
fn open(listen: Listen) -> io::Result<(TcpListener, Vec<IpAddr>)> {
    match listen {
        Listen::Loopback => {
            let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
            Ok((listener(address)?, vec![address]))
        }
        Listen::At(address) if !address.is_unspecified() => Ok((listener(address)?, vec![address])),
        Listen::At(address) => {
            let mut found = interfaces()?;
            found.retain(|one| one.address.is_ipv4() == address.is_ipv4());
            Ok((listener(address)?, to_be_tried(found)))
        }
        Listen::Auto => {
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
    // Open for as long as the process lives.
    descriptor::note(fd.as_fd());
    Ok(TcpListener::from(fd))
}

fn accept_all(domain: &Arc<Domain>, listener: &TcpListener, config: &Arc<ServerConfig>) {
    let lobby = Arc::default();
    loop {
        match listener.accept() {
            Ok((stream, from)) => receive(domain, stream, from, &lobby, config),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

fn receive(
    domain: &Arc<Domain>,
    stream: TcpStream,
    from: SocketAddr,
    lobby: &Arc<Lobby>,
    config: &Arc<ServerConfig>,
) {
    let is_loopback = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    let Ok(to) = stream.local_addr() else { return };
    if prepare(stream.as_fd()).is_err() {
        return;
    }
    let socket = Arc::new(Socket::open(OwnedFd::from(stream)));
    let place = Lobby::enter(lobby, &socket);
    // What does not leave the machine needs no lock; all else does, whatever address it names.
    let entrance = if is_loopback(from) && is_loopback(to) {
        Entrance::Loopback
    } else {
        Entrance::Network(Arc::clone(config))
    };
    door::receive(domain, socket, place, entrance);
}
