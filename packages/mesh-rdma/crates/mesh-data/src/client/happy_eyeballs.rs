//! Connects to the first of several addresses that accepts, until the caller stops it.

use crate::connection::blocking_io::SocketError;
use crate::stop::Stop;
use mesh_net::dial::{self, DialError, DialLimits};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

const LIMITS: DialLimits = DialLimits {
    head_start: Duration::from_millis(50),
    limit: Duration::from_secs(3),
    tick: Duration::from_millis(10),
};

/// Connects, and returns the connection with its address. The error contains the reason for each
/// address.
pub(crate) fn connect_first(
    targets: &[SocketAddr],
    stop: &Stop,
) -> Result<(OwnedFd, SocketAddr), SocketError> {
    let connected = dial::connect_first(targets, LIMITS, || stop.check_waiting());
    let (fd, target) = connected.map_err(|error| match error {
        DialError::Stopped(error) => SocketError::Stopped(error),
        DialError::Failed(failures) => {
            let reasons: Vec<_> = failures.iter().map(reason).collect();
            io::Error::other(reasons.join("; ")).into()
        }
    })?;
    ioctl_fionbio(&fd, false).map_err(io::Error::from)?;
    prepare(fd.as_fd())?;
    Ok((fd, target))
}

fn reason((target, error): &(SocketAddr, io::Error)) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("{target}: no answer in {} s", LIMITS.limit.as_secs()),
        _ => format!("{target}: {error}"),
    }
}

/// Disables Nagle's algorithm, and makes the system detect within seconds that the other machine is
/// unreachable.
pub(crate) fn prepare(fd: BorrowedFd<'_>) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(2))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(fd, 3)?;
    Ok(sockopt::set_tcp_user_timeout(fd, 5000)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    use std::net::Ipv4Addr;

    /// Returns an address on which no process can listen while the socket exists.
    fn reserved_address() -> (OwnedFd, SocketAddr) {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
        let address = getsockname(&socket).expect("an address");
        (socket, address.try_into().expect("an internet address"))
    }

    #[test]
    fn the_error_lists_all_unreachable_addresses() {
        let ((_first, one), (_second, other)) = (reserved_address(), reserved_address());
        let error = connect_first(&[one, other], &Stop::after(None)).expect_err("nobody listens");
        let text = error.of("it").to_string();
        assert!(text.contains(&one.to_string()) && text.contains(&other.to_string()), "{text}");
    }
}
