//! The thread that detects the end of peers and releases the resources that they used.

use crate::client::link::Link;
use crate::connection::close_on_fork::Descriptor;
use crate::domain::{Domain, lock};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Instant;

const STACK_LEN: usize = 256 << 10;
/// The number of the descriptor that wakes the thread.
const WAKE: u64 = 0;

/// Connections that are monitored for their end.
#[derive(Debug)]
pub(crate) struct PeerMonitor {
    epoll: Descriptor,
    wake_fd: Descriptor,
    links: Mutex<HashMap<u64, Weak<Link>>>,
    next: AtomicU64,
}

impl PeerMonitor {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake_fd, EventData::new_u64(WAKE), EventFlags::IN | EventFlags::ET)?;
        let (epoll, wake_fd) = (Descriptor::new(epoll), Descriptor::new(wake_fd));
        Ok(Self { epoll, wake_fd, links: Mutex::default(), next: AtomicU64::new(WAKE + 1) })
    }

    /// Starts to monitor a connection.
    pub(crate) fn add(&self, link: &Arc<Link>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut links = lock(&self.links);
        // Connections that were replaced need not be monitored.
        links.retain(|_, link| link.strong_count() > 0);
        links.insert(number, Arc::downgrade(link));
        drop(links);
        // Replies are read by the requesting thread; only the end of the connection matters here.
        let flags = EventFlags::RDHUP | EventFlags::ET;
        let added =
            link.with_control(|fd| epoll::add(&self.epoll, fd, EventData::new_u64(number), flags));
        if let Err(error) = added {
            link.mark_dead(&format!("its connection cannot be watched: {error}"));
        }
    }

    /// Wakes the thread, which then releases unused memory.
    pub(crate) fn wake(&self) {
        // The write fails if the counter is full, in which case the thread is woken anyway.
        let _ = rustix::io::write(&self.wake_fd, &1_u64.to_ne_bytes());
    }

    /// Starts the thread, which runs until the process exits.
    pub(crate) fn start(domain: &Arc<Domain>) -> io::Result<()> {
        let domain = Arc::clone(domain);
        let run = move || {
            let mut events = Vec::with_capacity(16);
            loop {
                let until = domain.sweep();
                domain.peer_monitor.wait(&domain, &mut events, until);
            }
        };
        thread::Builder::new().name("mesh-rdma-watch".into()).stack_size(STACK_LEN).spawn(run)?;
        Ok(())
    }

    fn wait(&self, domain: &Domain, events: &mut Vec<epoll::Event>, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        events.clear();
        // After an interruption or a timeout, the caller waits again.
        let _ = epoll::wait(&self.epoll, spare_capacity(events), timeout.as_ref());
        for event in events.iter() {
            let number = event.data.u64();
            if number == WAKE {
                let _ = rustix::io::read(&self.wake_fd, &mut [0; 8]);
                continue;
            }
            let link = lock(&self.links).remove(&number).and_then(|link| link.upgrade());
            if let Some(link) = link {
                link.mark_dead("its connection closed");
                lock(&domain.links).retain(|_, kept| !Arc::ptr_eq(kept, &link));
            }
        }
    }
}
