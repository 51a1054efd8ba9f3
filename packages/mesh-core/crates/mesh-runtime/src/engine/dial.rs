//! Connecting to another host: name resolution, and the first of its addresses that responds.

use super::parker::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The time limit for the addresses of a host to respond.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// How long to wait for an address before the next one is tried concurrently.
///
/// After the last address the first one is tried again. TCP itself retransmits only after 1 s, and
/// then at growing intervals.
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
/// They are tried in order, each one as soon as the previous one fails or does not respond for a
/// while. An address that does not respond therefore costs little if another one does. Pending
/// addresses are tried again, so that a host is found as soon as it can be reached again.
///
/// # Errors
/// If none responds in time: the failure of each address, and how to fix it.
pub fn connect_any(addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
    let until = until.min(Instant::now() + CONNECT_MAX);
    let mut left: VecDeque<SocketAddr> = addresses.iter().copied().take(ADDRESSES_MAX).collect();
    let mut attempts: Vec<(SocketAddr, OwnedFd)> = Vec::new();
    let mut failures: Vec<(SocketAddr, io::Error)> = Vec::new();
    loop {
        if let Some(address) = left.pop_front() {
            match begin(&address) {
                Ok(stream) => attempts.push((address, stream)),
                Err(error) => {
                    record_failure(&mut failures, address, error.into());
                    continue;
                }
            }
        }
        let time_left = until.saturating_duration_since(Instant::now());
        if time_left.is_zero() {
            for (address, _) in attempts.drain(..) {
                record_failure(&mut failures, address, io::ErrorKind::TimedOut.into());
            }
        }
        if attempts.is_empty() && left.is_empty() {
            return Err(combined_error(&failures));
        }
        if let Some(stream) =
            wait_connected(&mut attempts, &mut failures, ATTEMPT_DELAY.min(time_left))?
        {
            return Ok(stream);
        }
        if left.is_empty() {
            // An address that has neither accepted nor refused may do so now.
            for (address, _) in &attempts {
                if !left.contains(address) {
                    left.push_back(*address);
                }
            }
        }
    }
}

/// Stores the last failure of an address.
fn record_failure(
    failures: &mut Vec<(SocketAddr, io::Error)>,
    address: SocketAddr,
    error: io::Error,
) {
    failures.retain(|(other, _)| *other != address);
    failures.push((address, error));
}

fn begin(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&stream, address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(stream),
        Err(error) => Err(error),
    }
}

/// Waits until one connection is established or has failed, or the time is over.
fn wait_connected(
    attempts: &mut Vec<(SocketAddr, OwnedFd)>,
    failures: &mut Vec<(SocketAddr, io::Error)>,
    timeout: Duration,
) -> io::Result<Option<OwnedFd>> {
    let mut fds: Vec<PollFd<'_>> =
        attempts.iter().map(|(_, stream)| PollFd::new(stream, PollFlags::OUT)).collect();
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let is_done: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    for at in (0..is_done.len()).rev().filter(|at| is_done[*at]) {
        let (address, stream) = attempts.remove(at);
        match sockopt::socket_error(&stream)? {
            Ok(()) => return Ok(Some(stream)),
            Err(error) => record_failure(failures, address, error.into()),
        }
    }
    // Other attempts to the same address would fail in the same way.
    attempts.retain(|(address, _)| !failures.iter().any(|(failed, _)| failed == address));
    Ok(None)
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
            "nobody listens there: start the worker, or correct the address".to_owned()
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
    use super::{ATTEMPT_DELAY, connect_any, resolve};
    use std::io;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn far_deadline() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    /// Returns an address without a listener.
    fn unused_address() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a free port")
    }

    #[test]
    fn the_next_address_is_tried_when_one_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = listener.local_addr().expect("it is bound");
        let stream = connect_any(&[unused_address(), there], far_deadline())
            .expect("somebody listens there");
        let (_, caller) = listener.accept().expect("it has called");
        let ours = rustix::net::getsockname(&stream).expect("it is connected");
        assert_eq!(SocketAddr::try_from(ours).ok(), Some(caller));
    }

    #[test]
    fn a_late_listener_is_found_before_tcp_retransmits() {
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        // The queue has room for one connection only: others get no response until there is room
        // again.
        listen(&listener, 0).expect("it is bound");
        let there = rustix::net::getsockname(&listener).expect("it is bound");
        let there = SocketAddr::try_from(there).expect("an address");
        let _first = TcpStream::connect(there).expect("there is room");
        let opens = std::thread::spawn(move || {
            std::thread::sleep(ATTEMPT_DELAY / 2);
            rustix::net::accept(&listener).map(|first| (first, listener))
        });
        let began = Instant::now();
        connect_any(&[there], far_deadline()).expect("there is room by now");
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        opens.join().expect("it does not panic").expect("somebody has called");
    }

    #[test]
    fn the_error_names_each_address_that_failed() {
        let (one, other) = (unused_address(), unused_address());
        let error = connect_any(&[one, other], far_deadline()).expect_err("nobody listens");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let text = error.to_string();
        assert!(text.contains(&format!("{one}: nobody listens there: start")), "{text}");
        assert!(text.contains(&format!("{other}: nobody")), "{text}");
    }

    #[test]
    fn an_unknown_name_is_an_error_unless_another_is_known() {
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
