//! Blocking, interruptible transfer of bytes over a descriptor.
#![expect(unsafe_code, reason = "lends memory of the transfer to system calls")]

use crate::error::DataError;
use crate::span::Span;
use crate::stop::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

/// The maximum number of descriptors in one message.
const DESCRIPTORS_MAX: usize = 4;

/// Sends two ranges of memory in sequence.
pub(crate) fn push(
    fd: BorrowedFd<'_>,
    head: &[u8],
    body: Span,
    stop: Option<&Stop>,
) -> Result<(), SocketError> {
    let (mut head_sent, mut body_sent) = (0, 0);
    while head_sent < head.len() || body_sent < body.len {
        let rest = Span { start: body.start + body_sent, len: body.len - body_sent };
        // SAFETY: the caller keeps the body mapped, and only the kernel reads it.
        let parts = [IoSlice::new(&head[head_sent..]), IoSlice::new(unsafe { rest.bytes() })];
        let mut none = SendAncillaryBuffer::default();
        match sendmsg(fd, &parts, &mut none, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                let of_head = sent.min(head.len() - head_sent);
                head_sent += of_head;
                body_sent += sent - of_head;
                // A slow link may never block a call, so the deadline is checked here, too.
                stop.map_or(Ok(()), Stop::check).map_err(SocketError::Stopped)?;
            }
            Err(error) => waited(error, stop)?,
        }
    }
    Ok(())
}

/// Receives available bytes into two ranges of memory in sequence. Returns their number, which is
/// zero if the other side has closed the connection. With `DONTWAIT`, it does not block.
pub(crate) fn pull(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    body: Span,
    flags: RecvFlags,
    stop: Option<&Stop>,
) -> Result<usize, SocketError> {
    // SAFETY: the caller keeps the body mapped for writing, and only the kernel writes it.
    let parts = &mut [IoSliceMut::new(head), IoSliceMut::new(unsafe { body.bytes_mut() })];
    loop {
        match recvmsg(fd, parts, &mut RecvAncillaryBuffer::default(), flags) {
            Ok(message) => return Ok(message.bytes),
            Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => {
                return Err(SocketError::Nothing);
            }
            Err(error) => waited(error, stop)?,
        }
    }
}

/// Waits for bytes until `stop` ends the wait. Fails if the other side has closed the connection,
/// even if unread bytes remain.
pub(crate) fn await_bytes(fd: BorrowedFd<'_>, stop: &Stop) -> Result<(), SocketError> {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    loop {
        let left = stop.left().and_then(|left| Timespec::try_from(left).ok());
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)];
        let count = match poll(&mut polled, left.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
        };
        stop.check().map_err(SocketError::Stopped)?;
        if polled[0].revents().intersects(gone) {
            return Err(SocketError::Closed);
        }
        if count > 0 {
            return Ok(());
        }
    }
}

/// Sends bytes with descriptors; returns the number of bytes sent.
pub(crate) fn push_with(
    fd: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, SocketError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    loop {
        match sendmsg(fd, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return Ok(other.map_err(io::Error::from)?),
        }
    }
}

/// Receives some bytes, and the descriptors that are attached to them.
pub(crate) fn pull_with(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    stop: Option<&Stop>,
) -> Result<(usize, Vec<OwnedFd>), SocketError> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(buffer)];
        match recvmsg(fd, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => {
                let rights = ancillary.drain().filter_map(|one| match one {
                    RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                    _ => None,
                });
                return Ok((message.bytes, rights.flatten().collect()));
            }
            Err(error) => waited(error, stop)?,
        }
    }
}

/// The reason why a connection cannot continue.
#[derive(Debug)]
pub(crate) enum SocketError {
    /// The other side has closed it, or has died.
    Closed,
    /// No bytes have arrived, and the call was not to block.
    Nothing,
    /// The received bytes are not a frame.
    Strange,
    /// The other side has not proved its identity, or the authenticity of the received data.
    Unproven(String),
    /// The transfer must end.
    Stopped(DataError),
    /// A system call failed.
    System(io::Error),
}

impl SocketError {
    /// Converts it to the error of a request to the process `name`.
    pub(crate) fn of(self, name: &str) -> DataError {
        let name = name.to_owned();
        match self {
            Self::Stopped(error) => error,
            Self::Closed | Self::Nothing => {
                DataError::PeerDied { name, why: "its connection closed".to_owned() }
            }
            Self::Strange => DataError::Refused { name, why: "it speaks no mesh-rdma".to_owned() },
            Self::Unproven(why) => DataError::Refused { name, why },
            Self::System(error) => DataError::PeerDied { name, why: error.to_string() },
        }
    }
}

impl From<io::Error> for SocketError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::System(error),
        }
    }
}

/// Decides after an error of a system call whether to retry.
fn waited(error: Errno, stop: Option<&Stop>) -> Result<(), SocketError> {
    match error {
        Errno::INTR => Ok(()),
        Errno::AGAIN => stop.map_or(Ok(()), Stop::check_waiting).map_err(SocketError::Stopped),
        other => Err(io::Error::from(other).into()),
    }
}
