//! Worker threads that receive and serve requests.

use crate::device::Device;
use crate::error::MountError;
use crate::server::Server;
use crate::session::Session;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Size of the receive buffer. The kernel requires at least 8 KiB; with more, it can forget more
/// inodes in one request.
const BUFFER_LEN: usize = 64 * 1024;
/// Poll interval for requests while a stopping thread waits for notifications to complete.
const LAST_POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A worker thread that receives and serves requests.
struct Worker {
    session: Arc<Session>,
    device: Arc<Device>,
    /// Epoll instance that wakes a single thread for a request, and all threads for the end.
    waker: OwnedFd,
}

/// Starts a worker thread.
pub(crate) fn start(
    number: usize,
    session: &Arc<Session>,
    device: &Arc<Device>,
) -> Result<JoinHandle<()>, MountError> {
    let doing = "cannot wait for requests of the kernel";
    let waker = epoll::create(CreateFlags::CLOEXEC).map_err(MountError::system(doing))?;
    let request = EventFlags::IN | EventFlags::EXCLUSIVE;
    epoll::add(&waker, device, EventData::new_u64(0), request)
        .and_then(|()| epoll::add(&waker, &session.stop, EventData::new_u64(1), EventFlags::IN))
        .map_err(MountError::system(doing))?;
    let worker = Worker { session: Arc::clone(session), device: Arc::clone(device), waker };
    session.enter();
    let started = Builder::new().name(format!("fuse-{number}")).spawn(move || worker.run());
    started.map_err(|source| {
        session.leave();
        MountError::System { doing: "cannot start a thread that answers the kernel", source }
    })
}

impl Worker {
    fn run(self) {
        let mut server = Server::new(Arc::clone(&self.session), Arc::clone(&self.device));
        let mut buffer = vec![0; BUFFER_LEN];
        loop {
            match self.device.receive(&mut buffer) {
                Ok(len) => server.serve(&buffer[..len]),
                Err(Errno::AGAIN) => {
                    if !self.wait() {
                        break;
                    }
                }
                // The requesting process or this thread was interrupted.
                Err(Errno::INTR | Errno::NOENT) => {}
                // The mount has ended.
                Err(_) => break,
            }
        }
        drop(server);
        let Self { session, device, waker } = self;
        drop((device, waker));
        session.leave();
    }

    /// Waits for the next request; returns false when the thread must end.
    fn wait(&self) -> bool {
        if self.session.is_stopping() {
            return self.wait_for_notifications();
        }
        let mut events = Vec::with_capacity(2);
        let woken = epoll::wait(&self.waker, spare_capacity(&mut events), None);
        matches!(woken, Ok(_) | Err(Errno::INTR))
    }

    /// While notifications are being sent, the kernel may send requests that they depend on.
    fn wait_for_notifications(&self) -> bool {
        if !self.session.is_notifying() {
            return false;
        }
        let mut watched = [PollFd::new(&self.device, PollFlags::IN)];
        matches!(poll(&mut watched, Some(&LAST_POLL_TIMEOUT)), Ok(_) | Err(Errno::INTR))
    }
}
