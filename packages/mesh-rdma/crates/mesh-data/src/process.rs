//! The one domain of this process, made when it is first needed.

use crate::client::peer_monitor::PeerMonitor;
use crate::connection::close_on_fork;
use crate::connection::peer_descriptor::{PeerDescriptor, Token};
use crate::domain::{Domain, lock, random};
use crate::error::DataError;
use crate::server::connection_handler;
use crate::server::tcp_listeners::{Listen, Options};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};

static FIRST: Place = Place { domain: Mutex::new(None), of_child: OnceLock::new() };
/// How many forks there are between the first process that had a domain and this one.
static GENERATION: AtomicUsize = AtomicUsize::new(0);
static OPTIONS: Mutex<Options> = Mutex::new(Options { listen: Listen::Auto, tcp_streams: None });

/// Where a process has its domain. A forked child has another place than its parent: the lock of
/// the parent's may be held by a thread that the child does not have.
#[derive(Default)]
struct Place {
    domain: Mutex<Option<Arc<Domain>>>,
    of_child: OnceLock<Box<Place>>,
}

/// The domain of this process.
///
/// # Errors
/// The system gives no memory, descriptor or thread.
pub fn domain() -> Result<Arc<Domain>, DataError> {
    let mut current = lock(&here().domain);
    if let Some(domain) = &*current {
        return Ok(Arc::clone(domain));
    }
    let domain = start()?;
    *current = Some(Arc::clone(&domain));
    Ok(domain)
}

/// Where this process has its domain.
fn here() -> &'static Place {
    let mut place = &FIRST;
    for _ in 0..generation() {
        place = place.of_child.get_or_init(Box::default);
    }
    place
}

/// Says how to use the network, from now on; tells whether it was said in time.
pub fn configure(options: Options) -> bool {
    let current = lock(&here().domain);
    let is_in_time = current.as_ref().is_none_or(|domain| domain.configure(options));
    if is_in_time {
        *lock(&OPTIONS) = options;
    }
    is_in_time
}

/// Which process this is, among those that were forked from each other: what was made in another
/// one is not to be touched, for its locks and pages are the other's.
pub fn generation() -> usize {
    GENERATION.load(Relaxed)
}

/// In a forked child: what the parent had is the parent's. Its domain is never dropped here, for
/// the threads that it belongs to are not here; its connections are not kept.
pub fn forget() {
    GENERATION.fetch_add(1, Relaxed);
    close_on_fork::give_up();
}

fn start() -> Result<Arc<Domain>, DataError> {
    let descriptor = PeerDescriptor {
        token: random()?,
        secret: random()?,
        boot: boot()?,
        // Others get the rest with the first handle: see `Domain::public_card`.
        fingerprint: [0; 32],
        port: 0,
        addresses: Vec::new(),
        name: format!("process {} on {}", std::process::id(), host_name()),
    };
    let made = || {
        let domain = Arc::new(Domain::new(descriptor, PeerMonitor::new()?)?);
        domain.configure(*lock(&OPTIONS));
        connection_handler::listen_local(&domain)?;
        PeerMonitor::start(&domain)?;
        Ok(domain)
    };
    made().map_err(DataError::system("cannot share memory with other processes"))
}

fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Which start of which machine this is, and which of its networks: what is the same for two
/// processes that reach each other without leaving either.
fn boot() -> Result<Token, DataError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(DataError::system("cannot read boot_id"))?;
    let digits = text.chars().filter_map(|one| one.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    // A container has addresses of its own, and a socket there is not seen here.
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |network| network.ino());
    Ok((number ^ u128::from(network)).to_le_bytes())
}
