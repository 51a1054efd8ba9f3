//! Connecting to the first of several addresses that accepts, racing them as in RFC 8305.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long to wait after the last address before the pending ones are tried again.
///
/// TCP itself retransmits only after 1 s, and then at growing intervals.
pub const RETRY_AFTER: Duration = Duration::from_millis(250);

/// The time limits of [`connect_first`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DialLimits {
    /// How long to wait for an address before the next one is tried concurrently.
    pub head_start: Duration,
    /// The time limit for an address to accept.
    pub limit: Duration,
    /// The interval at which `check` is called, which can end the attempt.
    pub tick: Duration,
}

/// The reason why no connection was established.
#[derive(Debug)]
pub enum DialError<E> {
    /// The caller ended the attempt.
    Stopped(E),
    /// No address has accepted: the last failure of each. The list is empty if there is none.
    Failed(Vec<(SocketAddr, io::Error)>),
}

/// Connects to whichever of the addresses accepts first; returns a non-blocking socket.
///
/// The addresses are tried in order, each one as soon as the previous one fails or does not respond
/// for a while. An address that does not respond therefore costs little if another one does.
/// Pending addresses are tried again, so that a host is found as soon as it can be reached again.
///
/// # Errors
/// [`DialError::Stopped`] with an error of `check`, and [`DialError::Failed`].
pub fn connect_first<E>(
    addresses: &[SocketAddr],
    limits: DialLimits,
    mut check: impl FnMut() -> Result<(), E>,
) -> Result<(OwnedFd, SocketAddr), DialError<E>> {
    let until = Instant::now() + limits.limit;
    let mut untried: VecDeque<SocketAddr> = addresses.iter().copied().collect();
    let mut is_first_round = true;
    let mut race = Race::default();
    loop {
        if let Some(address) = untried.pop_front()
            && !race.begin(address)
        {
            continue;
        }
        is_first_round &= !untried.is_empty();
        let head_start = if is_first_round { limits.head_start } else { RETRY_AFTER };
        let next_at = until.min(Instant::now() + head_start);
        let pending_count = race.pending.len();
        while pending_count > 0 && race.pending.len() == pending_count {
            let left = next_at.saturating_duration_since(Instant::now());
            if let Some(connected) = race.wait(left.min(limits.tick)) {
                return Ok(connected);
            }
            check().map_err(DialError::Stopped)?;
            if left.is_zero() {
                break;
            }
        }
        if Instant::now() >= until {
            race.give_up(Errno::TIMEDOUT);
        }
        if untried.is_empty() {
            if race.pending.is_empty() {
                return Err(DialError::Failed(race.failures));
            }
            // An address that has neither accepted nor refused may do so now.
            for (address, _) in &race.pending {
                if !untried.contains(address) {
                    untried.push_back(*address);
                }
            }
        }
    }
}

/// Connection attempts in progress.
#[derive(Default)]
struct Race {
    pending: Vec<(SocketAddr, OwnedFd)>,
    /// The last failure of each address.
    failures: Vec<(SocketAddr, io::Error)>,
}

impl Race {
    /// Starts an attempt; returns whether it is in progress.
    fn begin(&mut self, address: SocketAddr) -> bool {
        match begin(address) {
            Ok(socket) => self.pending.push((address, socket)),
            Err(error) => {
                self.fail(address, error.into());
                return false;
            }
        }
        true
    }

    /// Waits until a connection is established or has failed, or the time is over.
    fn wait(&mut self, limit: Duration) -> Option<(OwnedFd, SocketAddr)> {
        let mut fds: Vec<PollFd<'_>> =
            self.pending.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::OUT)).collect();
        match poll(&mut fds, Timespec::try_from(limit).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                self.give_up(error);
                return None;
            }
        }
        let is_done: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut failed = Vec::new();
        for at in (0..is_done.len()).rev().filter(|at| is_done[*at]) {
            let (address, socket) = self.pending.remove(at);
            match sockopt::socket_error(&socket).and_then(|outcome| outcome) {
                Ok(()) => return Some((socket, address)),
                Err(error) => failed.push((address, error)),
            }
        }
        for (address, error) in failed {
            self.fail(address, error.into());
        }
        None
    }

    /// Ends all attempts.
    fn give_up(&mut self, error: Errno) {
        for (address, _) in std::mem::take(&mut self.pending) {
            self.fail(address, error.into());
        }
    }

    /// Records the failure of an address. Other attempts to it would fail in the same way.
    fn fail(&mut self, address: SocketAddr, error: io::Error) {
        self.pending.retain(|(other, _)| *other != address);
        self.failures.retain(|(other, _)| *other != address);
        self.failures.push((address, error));
    }
}

fn begin(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::net::{TcpListener, TcpStream};

    const LIMITS: DialLimits = DialLimits {
        head_start: Duration::from_millis(250),
        limit: Duration::from_secs(20),
        tick: Duration::from_secs(20),
    };

    fn go_on() -> Result<(), Infallible> {
        Ok(())
    }

    /// Returns an address without a listener.
    fn nobody() -> SocketAddr {
        TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a free port")
    }

    /// Returns a listener whose queue holds only one connection: others get no response until the
    /// queue is empty.
    fn full_listener() -> TcpListener {
        use rustix::net::{bind, listen, socket};
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        listen(&listener, 0).expect("it is bound");
        TcpListener::from(listener)
    }

    #[test]
    fn the_next_address_is_tried_when_one_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = listener.local_addr().expect("it is bound");
        let (stream, address) =
            connect_first(&[nobody(), there], LIMITS, go_on).expect("somebody listens there");
        assert_eq!(address, there);
        let (_, caller) = listener.accept().expect("it has called");
        let ours = rustix::net::getsockname(&stream).expect("it is connected");
        assert_eq!(SocketAddr::try_from(ours).ok(), Some(caller));
    }

    #[test]
    fn a_briefly_full_listener_is_reached_before_tcp_retries() {
        let listener = full_listener();
        let there = listener.local_addr().expect("it is bound");
        let _first = TcpStream::connect(there).expect("there is space");
        let opens = std::thread::spawn(move || {
            std::thread::sleep(RETRY_AFTER / 2);
            listener.accept().map(|first| (first, listener))
        });
        let began = Instant::now();
        connect_first(&[there], LIMITS, go_on).expect("there is space by now");
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
        opens.join().expect("it does not panic").expect("somebody has called");
    }

    #[test]
    fn each_failed_address_is_reported_once() {
        let (one, other) = (nobody(), nobody());
        let failed = connect_first(&[one, other, one], LIMITS, go_on).expect_err("nobody listens");
        let DialError::Failed(failures) = failed;
        let failed: Vec<_> =
            failures.iter().map(|(address, error)| (*address, error.kind())).collect();
        let refused = io::ErrorKind::ConnectionRefused;
        assert_eq!(failed, [(other, refused), (one, refused)]);
    }

    #[test]
    fn the_caller_can_stop_a_dial() {
        let listener = full_listener();
        let there = listener.local_addr().expect("it is bound");
        let _first = TcpStream::connect(there).expect("there is space");
        let limits = DialLimits { tick: Duration::from_millis(1), ..LIMITS };
        let stopped = connect_first(&[there], limits, || Err("enough")).expect_err("a stop");
        assert!(matches!(stopped, DialError::Stopped("enough")), "{stopped:?}");
    }

    #[test]
    fn an_empty_list_of_addresses_is_an_error() {
        let failed = connect_first(&[], LIMITS, go_on).expect_err("there is no address");
        assert!(matches!(failed, DialError::Failed(failures) if failures.is_empty()));
    }
}
