//! Adaptive spinning before a blocking receive.
//!
//! Waking an idle processor costs several times as much as a short request and its reply. A thread
//! whose last wait on a socket was short therefore polls the socket for a moment before it blocks.
//! It spins only while the sender runs on another processor: on the same one, spinning would keep
//! the sender from running.

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use rustix::thread::sched_getcpu;
use std::hint::spin_loop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long to spin.
const SPIN_LIMIT: Duration = Duration::from_micros(50);
/// A wait that is shorter than this counts as short.
const SHORT_WAIT_MAX: Duration = Duration::from_micros(200);

/// Whether the last wait at a socket was a short one.
#[derive(Debug, Default)]
pub(crate) struct SpinWait(AtomicBool);

impl SpinWait {
    /// Receives, after spinning for a moment if bytes are likely to arrive soon.
    pub(crate) fn receive<T>(&self, fd: BorrowedFd<'_>, receive: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        if self.0.load(Ordering::Relaxed) && is_sent_elsewhere(fd) {
            spin(fd, begun + SPIN_LIMIT);
        }
        let received = receive();
        self.0.store(begun.elapsed() < SHORT_WAIT_MAX, Ordering::Relaxed);
        received
    }
}

/// Whether the last bytes were sent by another processor of this machine.
///
/// On loopback, the processor of the sender does all processing of a packet, so it is the incoming
/// processor of the socket. Unix domain sockets do not have such a number.
fn is_sent_elsewhere(fd: BorrowedFd<'_>) -> bool {
    let sender = sockopt::socket_incoming_cpu(fd).map(|cpu| cpu as usize);
    sender.is_ok_and(|cpu| cpu != sched_getcpu() && cpu <= u16::MAX.into())
}

fn spin(fd: BorrowedFd<'_>, until: Instant) {
    let mut byte = [0; 1];
    while let Err(Errno::AGAIN) = recv(fd, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        if Instant::now() >= until {
            return;
        }
        spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::thread;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is there");
        let near = TcpStream::connect(listener.local_addr().expect("it is bound"));
        let (far, _) = listener.accept().expect("one has connected");
        (near.expect("it listens"), far)
    }

    #[test]
    fn bytes_arrive_in_order_whether_a_wait_spins_or_blocks() {
        let (mut near, mut far) = pair();
        let echo = thread::spawn(move || {
            let spin_wait = SpinWait::default();
            let fd = far.try_clone().expect("it can be named twice");
            for _ in 0..1000 {
                let mut byte = [0; 1];
                spin_wait.receive(fd.as_fd(), || far.read_exact(&mut byte)).expect("it comes");
                far.write_all(&byte).expect("it goes");
            }
        });
        let spin_wait = SpinWait::default();
        let fd = near.try_clone().expect("it can be named twice");
        for count in 0..1000_u32 {
            let mut byte = [count as u8];
            near.write_all(&byte).expect("it goes");
            spin_wait.receive(fd.as_fd(), || near.read_exact(&mut byte)).expect("it comes");
            assert_eq!(byte, [count as u8]);
        }
        echo.join().expect("it has ended");
    }

    #[test]
    fn a_spinning_wait_detects_a_closed_connection() {
        let (near, far) = pair();
        let spin_wait = SpinWait(AtomicBool::new(true));
        drop(far);
        let mut byte = [0; 1];
        let fd = near.try_clone().expect("it can be named twice");
        let received = spin_wait.receive(fd.as_fd(), || (&near).read(&mut byte));
        assert_eq!(received.expect("an end is no error"), 0);
    }
}
