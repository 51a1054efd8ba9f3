//! Connects to the first of several addresses that accepts, racing them as in RFC 8305.

use crate::connection::blocking_io::SocketError;
use crate::stop::Stop;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The delay before the next address is tried concurrently.
const HEAD_START: Duration = Duration::from_millis(50);
/// How long to wait for the last address.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How often `stop` is checked.
const TICK: Duration = Duration::from_millis(10);

/// A connection attempt in progress.
struct Attempt {
    fd: OwnedFd,
    target: SocketAddr,
}

/// Connects, and returns the connection with its address. The error contains the reason for each
/// address.
pub(crate) fn connect_first(
    targets: &[SocketAddr],
    stop: &Stop,
) -> Result<(OwnedFd, SocketAddr), SocketError> {
    let poll = epoll::create(CreateFlags::CLOEXEC).map_err(io::Error::from)?;
    let mut attempts: Vec<Option<Attempt>> = Vec::new();
    let mut reasons = Vec::new();
    let mut rest = targets.iter();
    let mut events = Vec::with_capacity(targets.len().max(1));
    loop {
        // Start another attempt if none is in progress, or all of them have had their head start.
        let begun = Instant::now();
        let target = rest.next();
        if let Some(target) = target {
            match begin(*target, &poll, attempts.len() as u64) {
                Ok(attempt) => attempts.push(Some(attempt)),
                Err(error) => {
                    reasons.push(format!("{target}: {error}"));
                    continue;
                }
            }
        }
        let limit = if rest.len() > 0 { HEAD_START } else { CONNECT_LIMIT };
        while begun.elapsed() < limit && attempts.iter().any(Option::is_some) {
            events.clear();
            let tick = Timespec::try_from(TICK).ok();
            // After an interruption or a timeout, the loop waits again.
            let _ = epoll::wait(&poll, spare_capacity(&mut events), tick.as_ref());
            for event in &events {
                let at = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
                let Some(attempt) = attempts.get_mut(at).and_then(Option::take) else { continue };
                match attempt.finish() {
                    Ok(connected) => return Ok(connected),
                    Err((target, error)) => reasons.push(format!("{target}: {error}")),
                }
            }
            stop.check_waiting().map_err(SocketError::Stopped)?;
        }
        if rest.len() == 0 {
            let late = attempts.into_iter().flatten();
            reasons.extend(late.map(|one| format!("{}: no answer in 3 s", one.target)));
            return Err(io::Error::other(reasons.join("; ")).into());
        }
    }
}

fn begin(target: SocketAddr, poll: &OwnedFd, number: u64) -> io::Result<Attempt> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match connect(&fd, &target) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    epoll::add(poll, &fd, EventData::new_u64(number), EventFlags::OUT)?;
    Ok(Attempt { fd, target })
}

impl Attempt {
    /// Completes the attempt after an event on its socket.
    fn finish(self) -> Result<(OwnedFd, SocketAddr), (SocketAddr, io::Error)> {
        let Self { fd, target } = self;
        let settle = || {
            sockopt::socket_error(&fd)?.map_err(io::Error::from)?;
            ioctl_fionbio(&fd, false)?;
            prepare(fd.as_fd())
        };
        match settle() {
            Ok(()) => Ok((fd, target)),
            Err(error) => Err((target, error)),
        }
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
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_port_where_nobody_listens_does_not_keep_the_next_one_waiting() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let good = listener.local_addr().expect("an address");
        let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let bad = gone.local_addr().expect("an address");
        drop(gone);
        let stop = Stop::after(Some(Duration::from_secs(10)));
        let (_, address) = connect_first(&[bad, good], &stop).expect("one answers");
        assert_eq!(address, good);
    }

    #[test]
    fn all_that_do_not_answer_are_named() {
        let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let bad = gone.local_addr().expect("an address");
        drop(gone);
        let error = connect_first(&[bad, bad], &Stop::after(None)).expect_err("nobody listens");
        let text = error.of("it").to_string();
        assert_eq!(text.matches(&bad.to_string()).count(), 2, "{text}");
    }
}
