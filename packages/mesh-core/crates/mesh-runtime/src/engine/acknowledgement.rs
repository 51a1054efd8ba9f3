//! The times at which the kernels of other hosts last acknowledged data.
//!
//! A machine that acknowledges is up, whatever state its processes are in. The state machine
//! queries this before it declares a silent host dead.
#![expect(unsafe_code, reason = "reads TCP_INFO")]

use super::Engine;
use super::wire::lock;
use crate::hash::FastMap;
use mesh_wire::id::HostId;
use rustix::fd::{AsRawFd, OwnedFd};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// How long a live kernel may take to accept a connection, and how long a failure to do so counts.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long a verdict waits for an attempt that has lasted long enough.
///
/// On a busy machine the connecting thread may be starved, which proves nothing about the other
/// host.
const INCONCLUSIVE_MAX: Duration = Duration::from_secs(10);
/// The state of an established TCP connection.
const ESTABLISHED: u8 = 1;

/// The last known acknowledgement of each other host outside its current connection.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements(Mutex<FastMap<HostId, Latest>>);

#[derive(Debug, Default)]
struct Latest {
    at: Option<Instant>,
    /// A connection that its kernel has accepted and its agent has not replied to yet.
    dialling: Weak<OwnedFd>,
    /// When the current attempt to connect started.
    attempt: Option<Instant>,
    /// When the last attempt ended without a connection.
    failed: Option<Instant>,
    /// Since when no verdict is possible, because no attempt has lasted long enough.
    inconclusive: Option<Instant>,
}

impl Acknowledgements {
    /// Stores the last acknowledgement of a connection that is about to be closed.
    pub(super) fn note(&self, host: HostId, stream: &OwnedFd) {
        let Some(ago) = acknowledged_ago(stream) else { return };
        let at = Instant::now().checked_sub(ago);
        let mut all = lock(&self.0);
        let latest = all.entry(host).or_default();
        latest.at = latest.at.max(at);
    }

    /// Notes that the kernel of a host has accepted a connection; it is queried while it exists.
    fn dialling(&self, host: HostId, stream: &Arc<OwnedFd>) {
        lock(&self.0).entry(host).or_default().dialling = Arc::downgrade(stream);
    }

    /// Whether the lack of a connection is conclusive: an attempt got no response within its time.
    fn is_conclusive(&self, host: HostId) -> bool {
        let mut all = lock(&self.0);
        let latest = all.entry(host).or_default();
        let is_over = latest.attempt.is_some_and(|began| began.elapsed() >= ATTEMPT);
        let has_failed = latest.failed.is_some_and(|at| at.elapsed() < ATTEMPT);
        if is_over || has_failed || latest.dialling.strong_count() > 0 {
            latest.inconclusive = None;
            return true;
        }
        let since = *latest.inconclusive.get_or_insert_with(Instant::now);
        since.elapsed() >= INCONCLUSIVE_MAX
    }

    /// Returns how long ago a host last acknowledged data, if that is known.
    fn ago(&self, host: HostId) -> Option<Duration> {
        let (at, dialling) = {
            let all = lock(&self.0);
            let latest = all.get(&host)?;
            (latest.at, latest.dialling.upgrade())
        };
        let dialled = dialling.and_then(|stream| acknowledged_ago(&stream));
        least(at.map(|at| at.elapsed()), dialled)
    }
}

/// An attempt to connect to a host; dropping it ends the attempt.
pub(super) struct Attempt<'a> {
    all: &'a Acknowledgements,
    host: HostId,
}

impl<'a> Attempt<'a> {
    pub(super) fn begin(all: &'a Acknowledgements, host: HostId) -> Self {
        lock(&all.0).entry(host).or_default().attempt = Some(Instant::now());
        Self { all, host }
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        let latest = all.entry(self.host).or_default();
        (latest.attempt, latest.failed) = (None, Some(Instant::now()));
    }
}

/// A connection to a host during its handshake.
pub(super) struct Dialling<'a> {
    engine: &'a Engine,
    host: HostId,
    stream: Arc<OwnedFd>,
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.engine.acknowledgements.note(self.host, &self.stream);
    }
}

impl Engine {
    /// Notes that the kernel of a host has accepted a connection.
    ///
    /// Keep the returned value until the agent has replied or failed to reply.
    pub(super) fn dialling(&self, host: HostId, stream: &OwnedFd) -> Option<Dialling<'_>> {
        let stream = Arc::new(stream.try_clone().ok()?);
        self.acknowledgements.dialling(host, &stream);
        Some(Dialling { engine: self, host, stream })
    }

    /// Receives all pending input from a silent host, and reports what its kernel acknowledged.
    pub(super) fn probe(&self, host: HostId) {
        let link = lock(&self.shared).node.link_to(host.agent());
        let mut ago = None;
        if let Some(link) = link {
            self.read_link(link, None);
            let wire = lock(&self.shared).wires.get(&link).cloned();
            ago = wire.and_then(|wire| acknowledged_ago(wire.stream()));
        } else if lock(&self.routes).contains_key(&host)
            && !self.acknowledgements.is_conclusive(host)
        {
            // The next check probes again.
            return;
        }
        let ago = least(ago, self.acknowledgements.ago(host));
        self.with_node(|node| node.probed(host, ago));
    }
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// Returns how long ago the peer of a TCP connection last acknowledged data.
///
/// Returns `None` if the connection is not established.
pub(super) fn acknowledged_ago(stream: &OwnedFd) -> Option<Duration> {
    let mut facts = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a value of that size.
    let got = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            facts.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if got != 0 {
        return None;
    }
    // SAFETY: the value was zeroed, which is a valid value, and an older kernel writes a part of
    // it.
    let facts = unsafe { facts.assume_init() };
    (facts.tcpi_state == ESTABLISHED)
        .then(|| Duration::from_millis(facts.tcpi_last_ack_recv.into()))
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPT, Acknowledgements, Attempt, acknowledged_ago};
    use mesh_wire::id::HostId;
    use rustix::fd::OwnedFd;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn a_kernel_acknowledges_for_a_process_that_does_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = listener.local_addr().expect("it is bound");
        // The connection is never accepted or read.
        let stream: OwnedFd = TcpStream::connect(there).expect("there is space").into();
        let ago = acknowledged_ago(&stream).expect("it is established");
        assert!(ago < Duration::from_secs(5), "{ago:?}");
    }

    #[test]
    fn only_an_expired_or_recently_failed_attempt_is_conclusive() {
        let (all, host) = (Acknowledgements::default(), HostId(1));
        assert!(!all.is_conclusive(host), "nobody has tried");
        let attempt = Attempt::begin(&all, host);
        assert!(!all.is_conclusive(host), "it has just begun");
        super::lock(&all.0).entry(host).or_default().attempt = Instant::now().checked_sub(ATTEMPT);
        assert!(all.is_conclusive(host));
        drop(attempt);
        assert!(all.is_conclusive(host), "it has just failed");
        super::lock(&all.0).entry(host).or_default().failed = Instant::now().checked_sub(ATTEMPT);
        assert!(!all.is_conclusive(host), "nobody has tried since");
    }

    #[test]
    fn a_file_has_no_acknowledgement_time() {
        let file: OwnedFd = std::fs::File::open("/dev/null").expect("it is there").into();
        assert_eq!(acknowledged_ago(&file), None);
    }
}
