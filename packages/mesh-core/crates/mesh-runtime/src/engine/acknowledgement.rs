//! What the kernels of other hosts have acknowledged, and when.
//!
//! A machine that acknowledges is up, whatever its processes do. The state machine asks before it
//! declares a silent host dead.
#![expect(unsafe_code, reason = "reads TCP_INFO")]

use super::Engine;
use super::wire::lock;
use crate::hash::FastMap;
use mesh_wire::id::HostId;
use rustix::fd::{AsRawFd, OwnedFd};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The state of a TCP connection that both sides have open.
const ESTABLISHED: u8 = 1;

/// The last acknowledgement of each other host that is known outside its current link.
#[derive(Debug, Default)]
pub(super) struct Acknowledgements(Mutex<FastMap<HostId, Latest>>);

#[derive(Debug, Default)]
struct Latest {
    at: Option<Instant>,
    /// A connection that its kernel has accepted and its agent has not answered yet.
    dialling: Weak<OwnedFd>,
}

impl Acknowledgements {
    /// Keeps what is known of a connection that is about to be closed.
    pub(super) fn note(&self, host: HostId, stream: &OwnedFd) {
        let Some(ago) = acknowledged_ago(stream) else { return };
        let at = Instant::now().checked_sub(ago);
        let mut all = lock(&self.0);
        let latest = all.entry(host).or_default();
        latest.at = latest.at.max(at);
    }

    /// The kernel of a host has accepted a connection; it is read for as long as it is kept.
    fn dialling(&self, host: HostId, stream: &Arc<OwnedFd>) {
        lock(&self.0).entry(host).or_default().dialling = Arc::downgrade(stream);
    }

    /// How long ago a host last acknowledged something, as far as is known.
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

/// A connection to a host while the handshake is under way.
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
    /// Notes that the kernel of a host has accepted a connection. Keep what it returns until the
    /// agent has answered, or did not.
    pub(super) fn dialling(&self, host: HostId, stream: &OwnedFd) -> Option<Dialling<'_>> {
        let stream = Arc::new(stream.try_clone().ok()?);
        self.acknowledgements.dialling(host, &stream);
        Some(Dialling { engine: self, host, stream })
    }

    /// Receives all that has come from a silent host, and reports what its kernel acknowledged.
    pub(super) fn probe(&self, host: HostId) {
        let link = lock(&self.shared).node.link_to(host.agent());
        let mut ago = None;
        if let Some(link) = link {
            self.read_link(link, None);
            let wire = lock(&self.shared).wires.get(&link).cloned();
            ago = wire.and_then(|wire| acknowledged_ago(wire.stream()));
        }
        let ago = least(ago, self.acknowledgements.ago(host));
        self.with_node(|node| node.probed(host, ago));
    }
}

fn least(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// How long ago the other side of a TCP connection last acknowledged anything; nothing when the
/// connection is not established.
pub(super) fn acknowledged_ago(stream: &OwnedFd) -> Option<Duration> {
    let mut facts = MaybeUninit::<libc::tcp_info>::zeroed();
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into a value that is as long.
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
    // SAFETY: it was zeroed, which is a value of it, and an older kernel writes a part.
    let facts = unsafe { facts.assume_init() };
    (facts.tcpi_state == ESTABLISHED)
        .then(|| Duration::from_millis(facts.tcpi_last_ack_recv.into()))
}

#[cfg(test)]
mod tests {
    use super::acknowledged_ago;
    use rustix::fd::OwnedFd;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn a_kernel_acknowledges_for_a_process_that_does_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let there = listener.local_addr().expect("it is bound");
        // Nobody accepts it, and nobody reads.
        let stream: OwnedFd = TcpStream::connect(there).expect("there is room").into();
        let ago = acknowledged_ago(&stream).expect("it is established");
        assert!(ago < Duration::from_secs(5), "{ago:?}");
    }

    #[test]
    fn nothing_is_known_of_what_is_no_connection() {
        let file: OwnedFd = std::fs::File::open("/dev/null").expect("it is there").into();
        assert_eq!(acknowledged_ago(&file), None);
    }
}
