//! One connection between two processes, which transfers frames and their bodies.

use crate::connection::blocking_io::{self, SocketError};
use crate::connection::close_on_fork::Descriptor;
use crate::connection::frame::{REPLY_LEN, REQUEST_LEN, Reply, Request};
use crate::connection::spin_wait::SpinWait;
use crate::domain::lock;
use crate::security::handshake::Keys;
use crate::security::records;
use crate::span::Span;
use crate::stop::Stop;
use mesh_tls::{Opener, Sealer};
use rustix::net::{RecvFlags, Shutdown, shutdown, sockopt};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// How often a blocked call checks whether it must end.
const TICK: Duration = Duration::from_millis(10);
const NO_BYTES: Span = Span { start: 0, len: 0 };

/// A byte stream to another process.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: Descriptor,
    /// The keys of an encrypted connection.
    keys: OnceLock<(Mutex<Sealer>, Mutex<Opener>)>,
    spin_wait: SpinWait,
}

impl Socket {
    /// A connection that is not encrypted, or that has not completed its handshake.
    pub(crate) fn open(fd: OwnedFd) -> Self {
        Self { fd: Descriptor::new(fd), keys: OnceLock::new(), spin_wait: SpinWait::default() }
    }

    /// Encrypts all further data with the keys of the handshake.
    pub(crate) fn seal_with(&self, (sealer, opener): Keys) {
        let is_first = self.keys.set((Mutex::new(sealer), Mutex::new(opener))).is_ok();
        assert!(is_first, "a connection has one handshake");
    }

    /// Makes blocked calls end when the time limit of the caller has passed.
    pub(crate) fn wait_in_ticks(&self) -> io::Result<()> {
        tick(self.as_fd(), Some(TICK))
    }

    /// Makes each call block for at most `limit`.
    pub(crate) fn wait_at_most(&self, limit: Duration) -> io::Result<()> {
        tick(self.as_fd(), Some(limit))
    }

    /// Makes calls block as long as the other side is connected.
    pub(crate) fn wait_for_ever(&self) -> io::Result<()> {
        tick(self.as_fd(), None)
    }

    /// Shuts down both directions, which ends blocked calls on both sides.
    pub(crate) fn shut(&self) {
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Makes the system discard unsent data and reset the connection when it is closed: data of an
    /// aborted transfer must not arrive later, after a network failure has ended.
    pub(crate) fn reset_when_closed(&self) {
        let _ = sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// Sends a request and its body.
    pub(crate) fn send_request(
        &self,
        request: &Request,
        body: Span,
        stop: Option<&Stop>,
    ) -> Result<(), SocketError> {
        self.send(&request.encode(), body, stop)
    }

    /// Sends a reply and its body.
    pub(crate) fn send_reply(&self, reply: &Reply, body: Span) -> Result<(), SocketError> {
        self.send(&reply.encode(), body, None)
    }

    /// Sends bytes that are not a frame.
    pub(crate) fn send_bytes(&self, bytes: &[u8], stop: &Stop) -> Result<(), SocketError> {
        self.send(bytes, NO_BYTES, Some(stop))
    }

    fn send(&self, head: &[u8], body: Span, stop: Option<&Stop>) -> Result<(), SocketError> {
        match self.keys.get() {
            None => blocking_io::push(self.as_fd(), head, body, stop),
            Some((sealer, _)) => records::push(&mut lock(sealer), self.as_fd(), head, body, stop),
        }
    }

    /// Sends a frame with descriptors, which is possible on one machine only.
    pub(crate) fn send_with(
        &self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SocketError> {
        let sent = blocking_io::push_with(self.as_fd(), bytes, fds)?;
        self.send(&bytes[sent..], NO_BYTES, None)
    }

    /// Receives a request; `None` if the other side has closed the connection between two requests.
    pub(crate) fn receive_request(
        &self,
        stop: Option<&Stop>,
    ) -> Result<Option<(Request, Vec<OwnedFd>)>, SocketError> {
        let mut bytes = [0; REQUEST_LEN];
        let (received, fds) =
            self.spin_wait.receive(self.as_fd(), || self.receive_with(&mut bytes, stop))?;
        if received == 0 {
            return Ok(None);
        }
        self.receive(&mut bytes[received..], stop)?;
        let request = Request::decode(&bytes).ok_or(SocketError::Strange)?;
        Ok(Some((request, fds)))
    }

    /// Receives a reply.
    pub(crate) fn receive_reply(&self, stop: Option<&Stop>) -> Result<Reply, SocketError> {
        let mut bytes = [0; REPLY_LEN];
        self.receive(&mut bytes, stop)?;
        Reply::decode(&bytes).ok_or(SocketError::Strange)
    }

    /// Receives a reply with descriptors.
    pub(crate) fn receive_reply_with(
        &self,
        stop: Option<&Stop>,
    ) -> Result<(Reply, Vec<OwnedFd>), SocketError> {
        let mut bytes = [0; REPLY_LEN];
        let (received, fds) = self.receive_with(&mut bytes, stop)?;
        if received == 0 {
            return Err(SocketError::Closed);
        }
        self.receive(&mut bytes[received..], stop)?;
        Ok((Reply::decode(&bytes).ok_or(SocketError::Strange)?, fds))
    }

    /// Receives a reply, and its body, if any, directly into `buffer`.
    ///
    /// A body must fill the buffer; any other reply has no body.
    pub(crate) fn receive_reply_into(
        &self,
        buffer: Span,
        stop: Option<&Stop>,
    ) -> Result<Reply, SocketError> {
        let mut head = [0; REPLY_LEN];
        let mut received = 0;
        while received < REPLY_LEN {
            let rest = &mut head[received..];
            let pull = || self.pull(rest, buffer, RecvFlags::empty(), stop);
            match self.spin_wait.receive(self.as_fd(), pull)? {
                0 => return Err(SocketError::Closed),
                more => received += more,
            }
        }
        let reply = Reply::decode(&head).ok_or(SocketError::Strange)?;
        match reply.length as usize {
            0 => {}
            length if length == buffer.len => {
                let done = received - REPLY_LEN;
                let rest = buffer.part(done, length - done).expect("no more is taken than fits");
                self.receive_into(rest, stop)?;
            }
            _ => return Err(SocketError::Strange),
        }
        Ok(reply)
    }

    /// Receives bytes until `buffer` is full.
    pub(crate) fn receive(
        &self,
        mut buffer: &mut [u8],
        stop: Option<&Stop>,
    ) -> Result<(), SocketError> {
        while !buffer.is_empty() {
            match self.pull(buffer, NO_BYTES, RecvFlags::empty(), stop)? {
                0 => return Err(SocketError::Closed),
                received => buffer = &mut buffer[received..],
            }
        }
        Ok(())
    }

    /// Receives bytes directly into `buffer` until it is full.
    pub(crate) fn receive_into(
        &self,
        mut buffer: Span,
        stop: Option<&Stop>,
    ) -> Result<(), SocketError> {
        while buffer.len > 0 {
            match self.pull(&mut [], buffer, RecvFlags::empty(), stop)? {
                0 => return Err(SocketError::Closed),
                received => {
                    buffer = Span { start: buffer.start + received, len: buffer.len - received };
                    stop.map_or(Ok(()), Stop::check).map_err(SocketError::Stopped)?;
                }
            }
        }
        Ok(())
    }

    /// Like [`Socket::receive_into`], for memory that must not be written after the other side has
    /// aborted the transfer or the deadline has passed. This is checked immediately before bytes
    /// are taken, not before a wait, because this process may be suspended during the wait.
    pub(crate) fn land(&self, mut buffer: Span, stop: &Stop) -> Result<(), SocketError> {
        let mut has_bytes = self.has_bytes();
        while buffer.len > 0 {
            if !has_bytes {
                blocking_io::await_bytes(self.as_fd(), stop)?;
            }
            match self.pull(&mut [], buffer, RecvFlags::DONTWAIT, None) {
                Ok(0) => return Err(SocketError::Closed),
                Ok(received) => {
                    buffer = Span { start: buffer.start + received, len: buffer.len - received };
                }
                Err(SocketError::Nothing) => {}
                Err(error) => return Err(error),
            }
            stop.check().map_err(SocketError::Stopped)?;
            has_bytes = self.has_bytes();
        }
        Ok(())
    }

    /// Whether received bytes are buffered that have not been taken yet.
    fn has_bytes(&self) -> bool {
        self.keys.get().is_some_and(|(_, opener)| {
            let opener = lock(opener);
            !opener.plain().is_empty() || opener.has_record()
        })
    }

    fn receive_with(
        &self,
        buffer: &mut [u8],
        stop: Option<&Stop>,
    ) -> Result<(usize, Vec<OwnedFd>), SocketError> {
        if self.keys.get().is_none() {
            return blocking_io::pull_with(self.as_fd(), buffer, stop);
        }
        Ok((self.pull(buffer, NO_BYTES, RecvFlags::empty(), stop)?, Vec::new()))
    }

    fn pull(
        &self,
        head: &mut [u8],
        body: Span,
        flags: RecvFlags,
        stop: Option<&Stop>,
    ) -> Result<usize, SocketError> {
        match self.keys.get() {
            None => blocking_io::pull(self.as_fd(), head, body, flags, stop),
            Some((_, opener)) => {
                records::pull(&mut lock(opener), self.as_fd(), head, body, flags, stop)
            }
        }
    }
}

#[cfg(test)]
impl Socket {
    /// The same keys with another descriptor.
    pub(crate) fn with_descriptor(self, fd: OwnedFd) -> Self {
        Self { fd: Descriptor::new(fd), keys: self.keys, spin_wait: self.spin_wait }
    }

    /// Replaces the key with which data is sent.
    pub(crate) fn update_key(&self) {
        let (sealer, _) = self.keys.get().expect("the connection is encrypted");
        lock(sealer).update_key().expect("there is a next key");
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn tick(fd: BorrowedFd<'_>, tick: Option<Duration>) -> io::Result<()> {
    sockopt::set_socket_timeout(fd, sockopt::Timeout::Recv, tick)?;
    Ok(sockopt::set_socket_timeout(fd, sockopt::Timeout::Send, tick)?)
}
