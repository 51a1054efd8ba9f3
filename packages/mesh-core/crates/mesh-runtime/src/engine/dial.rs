//! Connecting to another host: name resolution, and the first of its addresses that responds.

use mesh_net::dial::{DialError, DialLimits, connect_first};
use rustix::fd::OwnedFd;
use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time limit for the addresses of a host to respond.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long to wait for an address before the next one is tried concurrently.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of addresses of one host to try.
const ADDRESSES_MAX: usize = 16;

/// The addresses of another host, and of a gateway to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Route {
    /// Each as `name:port` or `address:port`; they all refer to the same worker.
    pub addresses: Vec<String>,
    /// The addresses of the worker that forwards to it; empty if it is reached directly.
    pub gateway: Vec<String>,
}

/// Resolves names to addresses; an unknown name is skipped.
///
/// # Errors
/// If all names are unknown.
pub fn resolve(names: &[String]) -> io::Result<Vec<SocketAddr>> {
    let mut found = Vec::new();
    let mut unknown = Vec::new();
    for name in names {
        match name.to_socket_addrs() {
            Ok(addresses) => found.extend(addresses),
            Err(_) => unknown.push(name.as_str()),
        }
    }
    if found.is_empty() {
        let text = format!(
            "{} cannot be resolved here: correct the name, or use an address",
            unknown.join(", ")
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, text));
    }
    Ok(found)
}

/// Connects to whichever of the addresses responds first.
///
/// # Errors
/// If none responds in time: the failure of each address, and how to fix it.
pub fn connect_any(addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let limit = until.saturating_duration_since(Instant::now()).min(CONNECT_MAX);
    let limits = DialLimits { head_start: ATTEMPT_DELAY, limit, tick: limit };
    match connect_first(addresses, limits, || Ok::<(), Infallible>(())) {
        Ok((stream, _)) => Ok(stream),
        Err(DialError::Stopped(never)) => match never {},
        Err(DialError::Failed(failures)) => Err(combined_error(&failures)),
    }
}

/// Combines the failures of all addresses into one error.
fn combined_error(failures: &[(SocketAddr, io::Error)]) -> io::Error {
    let Some((_, last)) = failures.last() else { return io::ErrorKind::AddrNotAvailable.into() };
    let each = |(address, error): &(SocketAddr, io::Error)| {
        if failures.len() > 1 { format!("{address}: {}", explain(error)) } else { explain(error) }
    };
    let texts: Vec<String> = failures.iter().map(each).collect();
    io::Error::new(last.kind(), texts.join("; "))
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "connection refused: start the worker, or correct the address".to_owned()
        }
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no route to it: correct the address, or go through a gateway".to_owned()
        }
        io::ErrorKind::TimedOut => {
            "no reply in time: check that the machine is up and no firewall blocks the connection"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::{connect_any, resolve};
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    use std::io;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    fn far_deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Returns an address on which no process can listen while the socket exists.
    fn reserved_address() -> (OwnedFd, SocketAddr) {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = getsockname(&socket).expect("an address");
        (socket, address.try_into().expect("an internet address"))
    }

    #[test]
    fn the_error_names_each_address_that_failed() {
        let ((_first, one), (_second, other)) = (reserved_address(), reserved_address());
        let error = connect_any(&[one, other], far_deadline()).expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let text = error.to_string();
        assert!(text.contains(&format!("{one}: connection refused: start")), "{text}");
        assert!(text.contains(&format!("{other}: connection refused")), "{text}");
    }

    #[test]
    fn an_unresolvable_name_is_an_error_unless_another_name_resolves() {
        let unknown = "no-such-host.invalid:1".to_owned();
        let error = resolve(std::slice::from_ref(&unknown)).expect_err("nobody has that name");
        assert!(
            error.to_string().starts_with("no-such-host.invalid:1 cannot be resolved"),
            "{error}"
        );
        let both = resolve(&[unknown, "[::1]:2".to_owned()]).expect("an address is known");
        assert_eq!(both, ["[::1]:2".parse().expect("an address")]);
    }
}
