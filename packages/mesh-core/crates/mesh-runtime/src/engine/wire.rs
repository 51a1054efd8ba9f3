//! One socket that sends and receives frames.

use super::channel::{Channel, ended, set_failure_timeouts, try_receive};
use crate::segment::{DirectReceive, Filled};
use mesh_trust::{Opener, Sealer};
use mesh_wire::codec::Decoder;
use mesh_wire::frame::{Frame, HEAD_LEN, Kind};
use mesh_wire::id::ProcId;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of frames written by one system call.
const BATCH_FRAMES_MAX: usize = 32;
/// Maximum number of descriptors received by one system call; a frame carries one.
const FDS_MAX: usize = 32;

/// The shared segments of this process, as used by its connections.
pub trait Descriptors: Send + Sync {
    /// Returns the descriptor of one of our segments.
    fn get(&self, segment: u32) -> Option<Arc<OwnedFd>>;
    /// Notes that a peer has sent the descriptor of one of its segments.
    fn learn(&self, owner: ProcId, segment: u32, descriptor: OwnedFd);
    /// Notes that an arriving message hands back a generation of one of our segments.
    ///
    /// This process reads it until it is released in our own name. Called with the engine's lock
    /// held.
    fn acquired(&self, segment: u32, generation: u32);
    /// Notes that a process no longer reads a generation of one of our segments.
    fn released(&self, reader: ProcId, segment: u32, generation: u32);
    /// Notes that a peer is dead.
    fn peer_died(&self, proc: ProcId);
    /// Allocates `len` bytes for a message to processes of this host that arrives in pieces.
    fn begin_direct_receive(&self, len: usize) -> DirectReceive {
        DirectReceive::plain(len)
    }
    /// Notes that one of our segments has a message for other processes.
    ///
    /// Returns whether they need its descriptor, even if they already have one for a segment with
    /// this number.
    fn filled(&self, filled: &Filled) -> bool;
    /// Frees memory that was not used for a while; returns `false` if there is nothing more to
    /// free.
    fn sweep(&self) -> bool;
}

/// The result of writing to a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// All queued bytes were written.
    All,
    /// The socket is full: call again when it is writable.
    Blocked,
    /// Another thread is writing and handles the rest.
    Elsewhere,
    /// The connection is broken.
    Broken,
}

/// The result of one read from a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReadProgress {
    /// Nothing was available.
    Nothing,
    /// All available bytes were read.
    Drained,
    /// Bytes were read, and more may be available.
    More,
}

/// The destination of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerLocation {
    /// A process of this host; descriptors can be passed.
    SameHost,
    /// Another host.
    OtherHost,
}

/// One connected socket.
#[derive(Debug)]
pub struct Wire {
    stream: OwnedFd,
    location: PeerLocation,
    /// Frames in the order of the session; the node's lock is held while adding.
    queue: Mutex<VecDeque<Frame>>,
    writing: Mutex<Writing>,
    reading: Mutex<Reading>,
}

#[derive(Debug, Default)]
struct Writing {
    batch: VecDeque<Frame>,
    /// Encrypts frames that leave the machine.
    sealer: Option<Sealer>,
    /// Number of bytes of the first frame that were written.
    offset: usize,
    is_blocked: bool,
    /// A duplicate of the socket's descriptor, registered until the socket is writable.
    watch: Option<OwnedFd>,
}

#[derive(Debug, Default)]
struct Reading {
    decoder: Decoder,
    opener: Option<Opener>,
    descriptors: VecDeque<OwnedFd>,
}

impl Wire {
    /// Takes over a socket that is connected to a process of this host.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    pub fn local(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (queue, writing, reading) = Default::default();
        Ok(Self {
            stream: stream.into(),
            location: PeerLocation::SameHost,
            queue,
            writing,
            reading,
        })
    }

    /// Takes over a connection to another host.
    ///
    /// # Errors
    /// If the socket does not accept the options of a connection.
    pub fn remote(channel: Channel) -> io::Result<Self> {
        let stream = channel.stream;
        rustix::io::ioctl_fionbio(&stream, true)?;
        set_failure_timeouts(&stream)?;
        let (mut writing, mut reading) = (Writing::default(), Reading::default());
        if let Some(secure) = channel.secure {
            writing.sealer = Some(secure.sealer);
            reading.opener = Some(secure.opener);
        }
        let (writing, reading) = (Mutex::new(writing), Mutex::new(reading));
        Ok(Self {
            stream,
            location: PeerLocation::OtherHost,
            queue: Mutex::default(),
            writing,
            reading,
        })
    }

    /// Returns the socket.
    pub fn stream(&self) -> &OwnedFd {
        &self.stream
    }

    /// Returns the destination of the socket.
    pub fn location(&self) -> PeerLocation {
        self.location
    }

    /// Closes the connection in both directions.
    pub fn shut_down(&self) {
        // The connection may have ended already.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }

    /// Queues a frame; [`Wire::flush`] sends it.
    pub fn push(&self, frame: Frame) {
        lock(&self.queue).push_back(frame);
    }

    /// Whether all queued frames were written to the socket.
    pub fn is_drained(&self) -> bool {
        let writing = lock(&self.writing);
        writing.batch.is_empty() && lock(&self.queue).is_empty()
    }

    /// Stores the descriptor under which an epoll set watches whether the socket is writable.
    ///
    /// A second descriptor is needed because an exclusive registration cannot be modified.
    pub fn set_watch(&self, watch: OwnedFd) {
        lock(&self.writing).watch = Some(watch);
    }

    /// Notes that the socket is writable again.
    ///
    /// Returns the descriptor to remove from the epoll set.
    pub fn unblock(&self) -> Option<OwnedFd> {
        let mut writing = lock(&self.writing);
        writing.is_blocked = false;
        writing.watch.take()
    }

    /// Writes queued frames as far as the socket accepts them.
    pub fn flush(&self, descriptors: &dyn Descriptors) -> Written {
        loop {
            let Ok(mut writing) = self.writing.try_lock() else { return Written::Elsewhere };
            if writing.is_blocked {
                return Written::Elsewhere;
            }
            let written = self.write_all(&mut writing, descriptors);
            writing.is_blocked = written == Written::Blocked;
            drop(writing);
            // Another thread may have queued a frame after the last check and found the lock taken.
            if written != Written::All || lock(&self.queue).is_empty() {
                return written;
            }
        }
    }

    fn write_all(&self, writing: &mut Writing, descriptors: &dyn Descriptors) -> Written {
        loop {
            if writing.batch.is_empty() {
                std::mem::swap(&mut writing.batch, &mut lock(&self.queue));
            }
            if writing.batch.is_empty() && !writing.has_sealed() {
                return Written::All;
            }
            let written = if writing.sealer.is_some() {
                self.write_sealed(writing)
            } else {
                self.write_some(writing, descriptors)
            };
            match written {
                Ok(len) => writing.advance(len),
                Err(Errno::AGAIN) => return Written::Blocked,
                Err(Errno::INTR) => {}
                Err(_) => return Written::Broken,
            }
        }
    }

    fn write_some(&self, writing: &Writing, descriptors: &dyn Descriptors) -> Result<usize, Errno> {
        let is_segment = |frame: &Frame| frame.head.kind == Kind::Segment;
        let first = &writing.batch[0];
        // A descriptor is sent with the first byte of its frame, so that frame starts the write.
        // Each announcement needs one, or the receiver would assign the next descriptor to it. If
        // the segment no longer exists, the socket itself is sent, which no receiver accepts as a
        // segment.
        let is_announced = is_segment(first) && writing.offset == 0;
        let passed = is_announced.then(|| descriptors.get(first.head.rank));
        let rest = writing.batch.iter().skip(1).take_while(|frame| !is_segment(frame));
        let frames: Vec<&Frame> =
            std::iter::once(first).chain(rest).take(BATCH_FRAMES_MAX).collect();
        let heads = heads_of(&frames);
        let mut slices = slices_of(&heads, &frames);
        let mut slices = slices.as_mut_slice();
        IoSlice::advance_slices(&mut slices, writing.offset);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fd = passed.as_ref().map(|fd| {
            let segment = fd.as_ref().map(AsFd::as_fd);
            [segment.unwrap_or_else(|| self.stream.as_fd())]
        });
        if let Some(fd) = &fd {
            control.push(SendAncillaryMessage::ScmRights(fd));
        }
        sendmsg(&self.stream, slices, &mut control, SendFlags::NOSIGNAL)
    }

    /// Encrypts queued frames and sends them; returns the number of plaintext bytes consumed.
    fn write_sealed(&self, writing: &mut Writing) -> Result<usize, Errno> {
        let Writing { batch, sealer: Some(sealer), offset, .. } = writing else { return Ok(0) };
        let frames: Vec<&Frame> = batch.iter().take(BATCH_FRAMES_MAX).collect();
        let heads = heads_of(&frames);
        let mut slices = slices_of(&heads, &frames);
        let mut slices = slices.as_mut_slice();
        IoSlice::advance_slices(&mut slices, *offset);
        let taken = sealer.write(slices).map_err(|_| Errno::CONNABORTED)?;
        while !sealer.pending().is_empty() {
            match send(&self.stream, sealer.pending(), SendFlags::NOSIGNAL) {
                Ok(sent) => sealer.sent(sent),
                Err(Errno::INTR) => {}
                // The consumed bytes are encrypted: the next call sends the rest.
                Err(Errno::AGAIN) if taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Reads everything that has arrived, and passes it on in pieces.
    ///
    /// No other thread can read in the meantime.
    ///
    /// # Errors
    /// If the connection has ended: closed, broken, or in violation of the protocol.
    pub fn read(
        &self,
        descriptors: &dyn Descriptors,
        mut handle: impl FnMut(&mut Vec<Frame>),
    ) -> io::Result<()> {
        let mut reading = lock(&self.reading);
        let mut frames = Vec::new();
        loop {
            let progress = if reading.opener.is_some() {
                self.read_sealed(&mut reading, &mut frames)?
            } else {
                self.read_some(&mut reading)?
            };
            while let Some(frame) = reading.decoder.next_frame().map_err(io::Error::other)? {
                if frame.head.kind == Kind::Segment
                    && let Some(descriptor) = reading.descriptors.pop_front()
                {
                    descriptors.learn(frame.head.from.proc, frame.head.rank, descriptor);
                }
                frames.push(frame);
            }
            // A part of a frame from another host is a sign of life.
            if !frames.is_empty()
                || (self.location == PeerLocation::OtherHost && progress != ReadProgress::Nothing)
            {
                handle(&mut frames);
                frames.clear();
            }
            if progress != ReadProgress::More {
                return Ok(());
            }
        }
    }

    /// Like `read_some`, for an encrypted connection.
    fn read_sealed(
        &self,
        reading: &mut Reading,
        frames: &mut Vec<Frame>,
    ) -> io::Result<ReadProgress> {
        let Reading { decoder, opener: Some(opener), .. } = reading else {
            return Ok(ReadProgress::Nothing);
        };
        // Bytes that came with the handshake, or did not fit into the decoder, are already here.
        while let Some(plain) = opener.open().map_err(ended)? {
            decoder.feed(plain, |frame| frames.push(frame)).map_err(io::Error::other)?;
        }
        if opener.is_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match try_receive(&self.stream, opener.spare())? {
            Some(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(len) => {
                opener.filled(len);
                Ok(ReadProgress::More)
            }
            None => Ok(ReadProgress::Nothing),
        }
    }

    fn read_some(&self, reading: &mut Reading) -> io::Result<ReadProgress> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let spare = reading.decoder.spare();
        let spare_len = spare.len();
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = match recvmsg(&self.stream, &mut [IoSliceMut::new(spare)], &mut control, flags) {
            // The descriptor of a segment is lost, because this process has no descriptors left. On
            // the next connection the peer announces the segment again and retransmits everything
            // after it.
            Ok(got) if got.flags.contains(ReturnFlags::CTRUNC) => return Err(Errno::MFILE.into()),
            Ok(got) => got.bytes,
            Err(Errno::AGAIN) => return Ok(ReadProgress::Nothing),
            Err(Errno::INTR) => return self.read_some(reading),
            Err(error) => return Err(error.into()),
        };
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        reading.decoder.filled(got);
        let mut has_descriptors = false;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                reading.descriptors.extend(fds);
                has_descriptors = true;
            }
        }
        // A short read means that the socket is empty, unless a descriptor has cut it short.
        Ok(if got == spare_len || has_descriptors {
            ReadProgress::More
        } else {
            ReadProgress::Drained
        })
    }
}

fn heads_of(frames: &[&Frame]) -> Vec<[u8; HEAD_LEN]> {
    frames.iter().map(|frame| frame.head.encode(frame.tail.len())).collect()
}

fn slices_of<'a>(heads: &'a [[u8; HEAD_LEN]], frames: &[&'a Frame]) -> Vec<IoSlice<'a>> {
    let mut slices = Vec::with_capacity(2 * frames.len());
    for (head, frame) in heads.iter().zip(frames) {
        slices.push(IoSlice::new(head));
        slices.push(IoSlice::new(&frame.tail));
    }
    slices
}

impl Writing {
    fn has_sealed(&self) -> bool {
        self.sealer.as_ref().is_some_and(|sealer| !sealer.pending().is_empty())
    }

    fn advance(&mut self, mut len: usize) {
        len += self.offset;
        while let Some(first) = self.batch.front() {
            let whole = HEAD_LEN + first.tail.len();
            if len < whole {
                break;
            }
            len -= whole;
            self.batch.pop_front();
        }
        self.offset = len;
    }
}

/// Locks a mutex and ignores poisoning: a thread that panicked left the data consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
