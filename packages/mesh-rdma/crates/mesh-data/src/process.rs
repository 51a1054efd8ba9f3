//! The single domain of this process, which is created when it is first needed.

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

static FIRST: DomainCell = DomainCell { domain: Mutex::new(None), child: OnceLock::new() };
/// The number of forks between the first process that had a domain and this one.
static GENERATION: AtomicUsize = AtomicUsize::new(0);
static OPTIONS: Mutex<Options> = Mutex::new(Options { listen: Listen::Auto, tcp_streams: None });

/// Holds the domain of a process. A forked child uses a separate instance, because the lock of the
/// parent's instance may be held by a thread that does not exist in the child.
#[derive(Default)]
struct DomainCell {
    domain: Mutex<Option<Arc<Domain>>>,
    child: OnceLock<Box<DomainCell>>,
}

/// The domain of this process.
///
/// # Errors
/// The system does not provide memory, descriptors or threads.
pub fn domain() -> Result<Arc<Domain>, DataError> {
    let mut current = lock(&current_cell().domain);
    if let Some(domain) = &*current {
        return Ok(Arc::clone(domain));
    }
    let domain = start()?;
    *current = Some(Arc::clone(&domain));
    Ok(domain)
}

/// The instance that holds the domain of this process.
fn current_cell() -> &'static DomainCell {
    let mut cell = &FIRST;
    for _ in 0..generation() {
        cell = cell.child.get_or_init(Box::default);
    }
    cell
}

/// Sets the network options; returns false if it is too late for that.
pub fn configure(options: Options) -> bool {
    let current = lock(&current_cell().domain);
    let is_in_time = current.as_ref().is_none_or(|domain| domain.configure(options));
    if is_in_time {
        *lock(&OPTIONS) = options;
    }
    is_in_time
}

/// Identifies this process among processes that were forked from each other. Objects of another
/// generation must not be accessed, because their locks and pages belong to the other process.
pub fn generation() -> usize {
    GENERATION.load(Relaxed)
}

/// Detaches a forked child from the domain of its parent. That domain is never dropped here,
/// because its threads do not exist in the child; its connections are closed.
pub fn detach_child() {
    GENERATION.fetch_add(1, Relaxed);
    close_on_fork::close_all();
}

fn start() -> Result<Arc<Domain>, DataError> {
    let descriptor = PeerDescriptor {
        token: random()?,
        secret: random()?,
        boot: boot()?,
        // Other processes receive these fields with the first handle: see
        // `Domain::public_descriptor`.
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

/// Identifies the boot of the machine and the network namespace: two processes with equal values
/// reach each other without leaving either.
fn boot() -> Result<Token, DataError> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(DataError::system("cannot read boot_id"))?;
    let digits = text.chars().filter_map(|one| one.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    // A container has separate addresses, and its sockets are not reachable from here.
    let network = std::fs::metadata("/proc/self/ns/net").map_or(0, |network| network.ino());
    Ok((number ^ u128::from(network)).to_le_bytes())
}
