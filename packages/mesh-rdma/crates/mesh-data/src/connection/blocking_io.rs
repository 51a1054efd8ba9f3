//! Bytes over a descriptor, in order: calls that wait, and that can be told to end.
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

/// The most descriptors that come along with a frame.
const DESCRIPTORS_MAX: usize = 4;

/// Sends two ranges of memory, one behind the other.
pub(crate) fn push(
    fd: BorrowedFd<'_>,
    head: &[u8],
    body: Span,
    stop: Option<&Stop>,
) -> Result<(), SocketError> {
    let (mut head_sent, mut body_sent) = (0, 0);
    while head_sent < head.len() || body_sent < body.len {
        let rest = Span { start: body.start + body_sent, len: body.len - body_sent };
        // SAFETY: the caller keeps the body mapped, and the kernel alone reads it.
        let parts = [IoSlice::new(&head[head_sent..]), IoSlice::new(unsafe { rest.bytes() })];
        let mut none = SendAncillaryBuffer::default();
        match sendmsg(fd, &parts, &mut none, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                let of_head = sent.min(head.len() - head_sent);
                head_sent += of_head;
                body_sent += sent - of_head;
                // A slow link never has it wait for long, but takes its time all the same.
                stop.map_or(Ok(()), Stop::check).map_err(SocketError::Stopped)?;
            }
            Err(error) => waited(error, stop)?,
        }
    }
    Ok(())
}

/// Receives what there is, into two ranges of memory, one behind the other. Gives how much it was:
/// nothing when the other side has closed. It does not wait where the flags say so.
pub(crate) fn pull(
    fd: BorrowedFd<'_>,
    head: &mut [u8],
    body: Span,
    flags: RecvFlags,
    stop: Option<&Stop>,
) -> Result<usize, SocketError> {
    // SAFETY: the caller keeps the body mapped for writing, and the kernel alone writes it.
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

/// Waits for bytes, at most until it is time to stop. What the other side has sent before it went
/// away does not count.
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

/// Sends bytes with descriptors; gives how many bytes went.
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

/// Receives some bytes and the descriptors that come with them.
pub(crate) fn pull_with(
    fd: BorrowedFd<'_>,
    room: &mut [u8],
    stop: Option<&Stop>,
) -> Result<(usize, Vec<OwnedFd>), SocketError> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(room)];
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

/// Why a connection cannot go on.
#[derive(Debug)]
pub(crate) enum SocketError {
    /// The other side has closed it, or is gone.
    Closed,
    /// Nothing has come yet, and it was not to be waited for.
    Nothing,
    /// What came is no frame.
    Strange,
    /// The other side has not proved who it is, or not what it sent.
    Unproven(String),
    /// The transfer has to end.
    Stopped(DataError),
    /// The system says why.
    System(io::Error),
}

impl SocketError {
    /// In the words for whoever has asked `name`.
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

/// After a system call that could not go on: looks whether to try again.
fn waited(error: Errno, stop: Option<&Stop>) -> Result<(), SocketError> {
    match error {
        Errno::INTR => Ok(()),
        Errno::AGAIN => stop.map_or(Ok(()), Stop::check_waiting).map_err(SocketError::Stopped),
        other => Err(io::Error::from(other).into()),
    }
}
