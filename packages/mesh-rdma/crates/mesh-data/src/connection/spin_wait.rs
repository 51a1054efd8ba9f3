//! Waiting for what is about to come without going to sleep over it.
//!
//! Who sleeps has to be woken, and to wake an idle processor costs several times what a short
//! request and its answer do. So who has not had to wait long the last time looks for a moment
//! first. It does so only while the other side runs on another processor: on the same one it would
//! keep that from running.

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv, sockopt};
use rustix::thread::sched_getcpu;
use std::hint::spin_loop;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long one looks.
const LOOK: Duration = Duration::from_micros(50);
/// What comes within this time is worth looking for.
const SOON: Duration = Duration::from_micros(200);

/// Whether the last wait at a socket was a short one.
#[derive(Debug, Default)]
pub(crate) struct Attention(AtomicBool);

impl Attention {
    /// Receives, and looks before that for a moment if it is likely that something comes.
    pub(crate) fn receive<T>(&self, fd: BorrowedFd<'_>, receive: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        if self.0.load(Ordering::Relaxed) && is_sent_elsewhere(fd) {
            look(fd, begun + LOOK);
        }
        let received = receive();
        self.0.store(begun.elapsed() < SOON, Ordering::Relaxed);
        received
    }
}

/// Whether what came last was sent by another processor of this machine.
///
/// On loopback the sender's processor does all that there is to do with a packet; with a plain
/// socket of the machine there is no such number.
fn is_sent_elsewhere(fd: BorrowedFd<'_>) -> bool {
    let sender = sockopt::socket_incoming_cpu(fd).map(|cpu| cpu as usize);
    sender.is_ok_and(|cpu| cpu != sched_getcpu() && cpu <= u16::MAX.into())
}

fn look(fd: BorrowedFd<'_>, until: Instant) {
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
    fn what_comes_is_received_in_order_however_it_is_waited_for() {
        let (mut near, mut far) = pair();
        let echo = thread::spawn(move || {
            let attention = Attention::default();
            let fd = far.try_clone().expect("it can be named twice");
            for _ in 0..1000 {
                let mut byte = [0; 1];
                attention.receive(fd.as_fd(), || far.read_exact(&mut byte)).expect("it comes");
                far.write_all(&byte).expect("it goes");
            }
        });
        let attention = Attention::default();
        let fd = near.try_clone().expect("it can be named twice");
        for count in 0..1000_u32 {
            let mut byte = [count as u8];
            near.write_all(&byte).expect("it goes");
            attention.receive(fd.as_fd(), || near.read_exact(&mut byte)).expect("it comes");
            assert_eq!(byte, [count as u8]);
        }
        echo.join().expect("it has ended");
    }

    #[test]
    fn the_end_is_heard_while_looking() {
        let (near, far) = pair();
        let attention = Attention(AtomicBool::new(true));
        drop(far);
        let mut byte = [0; 1];
        let fd = near.try_clone().expect("it can be named twice");
        let received = attention.receive(fd.as_fd(), || (&near).read(&mut byte));
        assert_eq!(received.expect("an end is no error"), 0);
    }
}
