//! Times an echo of large payloads between two processes: shared segments against raw memory.
//!
//! ```text
//! cargo run --release -p mesh-runtime --example segment_echo [rounds]
//! ```
//!
//! The lower bound is what the hardware allows: two mappings that both processes share and that
//! stay warm, filled and read without any bookkeeping. The echo through segments does the same
//! work: the caller copies into a segment, the other process copies from its view into one of its
//! own segments, and the caller reads its view of that segment.
#![expect(unsafe_code, reason = "maps the bare memory that segments are compared with")]

use mesh_runtime::segment::{
    CacheLimits, Filled, Mapping, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::frame::{PART_LEN, Part};
use mesh_wire::id::ProcId;
use std::collections::HashSet;
use std::env;
use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{ErrorKind, Read, Write, stdin};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const CALLER: ProcId = ProcId::new(0, 0);
const ECHO: ProcId = ProcId::new(0, 1);
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 8 << 20, 64 << 20];

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Length in bytes of a notification between the processes: tag, descriptor number, part.
const NOTE_LEN: usize = 8 + PART_LEN;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tag {
    /// A message to be echoed, or its echo.
    Message = 1,
    /// The receiver has released a message.
    Release = 2,
    /// Like `Message`, through raw memory.
    Bare = 3,
}

fn note(mut link: &UnixStream, tag: Tag, fd: i32, part: Part) -> Outcome<()> {
    let mut out = [0; NOTE_LEN];
    out[0] = tag as u8;
    out[4..8].copy_from_slice(&fd.to_le_bytes());
    out[8..].copy_from_slice(&part.encode());
    Ok(link.write_all(&out)?)
}

/// Receives the next notification; `None` if the other side has closed the connection.
fn next_note(mut link: &UnixStream) -> Outcome<Option<(Tag, i32, Part)>> {
    let mut bytes = [0; NOTE_LEN];
    match link.read_exact(&mut bytes) {
        // `ConnectionReset` occurs if it closed the connection without reading our last release.
        Err(error)
            if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
        {
            return Ok(None);
        }
        result => result?,
    }
    let tag = match bytes[0] {
        1 => Tag::Message,
        2 => Tag::Release,
        _ => Tag::Bare,
    };
    let fd = i32::from_le_bytes(*bytes[4..].first_chunk().ok_or("short note")?);
    Ok(Some((tag, fd, Part::decode(bytes[8..].first_chunk().ok_or("short note")?))))
}

/// Opens a descriptor of the other process. A real connection passes it with the message.
fn fetch_fd(pid: u32, fd: i32) -> Outcome<OwnedFd> {
    Ok(File::options().read(true).write(true).open(format!("/proc/{pid}/fd/{fd}"))?.into())
}

/// A received notification that is not a release.
enum Arrival {
    /// Bytes in a segment; the sender is notified when they are dropped.
    Message(Mapping),
    /// This number of bytes is in the raw memory.
    Bare(usize),
}

/// One side of the echo.
struct Endpoint {
    peer: ProcId,
    peer_pid: u32,
    link: Arc<UnixStream>,
    pool: SegmentPool,
    cache: SegmentCache,
    known: HashSet<u32>,
}

impl Endpoint {
    fn new(me: ProcId, peer: ProcId, peer_pid: u32, link: UnixStream) -> Self {
        let pool = SegmentPool::new(me, SegmentLimits::default());
        let cache = SegmentCache::new(CacheLimits::default());
        Self { peer, peer_pid, link: Arc::new(link), pool, cache, known: HashSet::new() }
    }

    fn send(&self, bytes: &[u8]) -> Outcome<()> {
        let Filled { fd, parts, .. } = self.pool.fill(&[bytes], &[self.peer])?;
        note(&self.link, Tag::Message, fd.as_raw_fd(), parts[0])
    }

    fn send_bare(&self, len: usize) -> Outcome<()> {
        let part = Part { owner: self.peer, segment: 0, generation: 0, offset: 0, len: len as u64 };
        note(&self.link, Tag::Bare, 0, part)
    }

    /// Returns the next arrival; `None` if the other side has closed the connection.
    fn receive(&mut self) -> Outcome<Option<Arrival>> {
        loop {
            let Some((tag, fd, part)) = next_note(&self.link)? else { return Ok(None) };
            match tag {
                Tag::Release => self.pool.release(part.segment, part.generation, self.peer),
                Tag::Bare => return Ok(Some(Arrival::Bare(usize::try_from(part.len)?))),
                Tag::Message => {
                    if self.known.insert(part.segment) {
                        self.cache.learn(self.peer, part.segment, fetch_fd(self.peer_pid, fd)?)?;
                    }
                    let link = Arc::clone(&self.link);
                    // The other side may have exited; then it needs no release.
                    let on_drop = Box::new(move || drop(note(&link, Tag::Release, 0, part)));
                    let mut views = self.cache.open(&[part], on_drop)?;
                    return Ok(views.pop().map(Arrival::Message));
                }
            }
        }
    }
}

/// Memory that both processes have mapped, without any bookkeeping.
struct Bare(*mut u8, usize);

impl Bare {
    fn map(fd: &OwnedFd) -> Self {
        let len = SIZES[SIZES.len() - 1];
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file of that length; it stays until the process ends.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "the memory can be mapped");
        Self(start.cast(), len)
    }

    fn bytes(&self, len: usize) -> &[u8] {
        assert!(len <= self.1);
        // SAFETY: inside the mapping; the other process waits for us while we read.
        unsafe { std::slice::from_raw_parts(self.0, len) }
    }

    fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.1);
        // SAFETY: inside the mapping, and no slice of it is in use.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, bytes.len()) }
    }
}

fn bare_fd() -> Outcome<OwnedFd> {
    // SAFETY: the name is a C string, and the descriptor is new.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"bare".as_ptr(), 0)) };
    File::from(fd.try_clone()?).set_len(SIZES[SIZES.len() - 1] as u64)?;
    Ok(fd)
}

/// Reads all bytes, at the speed of the memory.
fn read(bytes: &[u8]) {
    let words = bytes.as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes);
    black_box(words.fold(0, u64::wrapping_add));
}

/// Returns the median and the minimum time of `rounds`, after three warm-up rounds.
fn time(rounds: usize, mut round: impl FnMut() -> Outcome<()>) -> Outcome<(Duration, Duration)> {
    let mut times = Vec::with_capacity(rounds);
    for index in 0..rounds + 3 {
        let start = Instant::now();
        round()?;
        if index >= 3 {
            times.push(start.elapsed());
        }
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], times[0]))
}

/// Runs the other process: echoes until the caller closes the connection.
fn reply(parent: u32, there: i32, back: i32) -> Outcome<()> {
    let link = UnixStream::from(stdin().as_fd().try_clone_to_owned()?);
    let there = Bare::map(&fetch_fd(parent, there)?);
    let back = Bare::map(&fetch_fd(parent, back)?);
    let mut side = Endpoint::new(ECHO, CALLER, parent, link);
    while let Some(arrival) = side.receive()? {
        match arrival {
            Arrival::Message(view) => side.send(&view)?,
            Arrival::Bare(len) => {
                back.fill(there.bytes(len));
                side.send_bare(len)?;
            }
        }
    }
    Ok(())
}

fn call(rounds: usize) -> Outcome<()> {
    let (there_fd, back_fd) = (bare_fd()?, bare_fd()?);
    let (there, back) = (Bare::map(&there_fd), Bare::map(&back_fd));
    let (ours, theirs) = UnixStream::pair()?;
    let numbers = [std::process::id().to_string()]
        .into_iter()
        .chain([&there_fd, &back_fd].map(|fd| fd.as_raw_fd().to_string()));
    let mut child = Command::new(env::current_exe()?)
        .arg("answer")
        .args(numbers)
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let mut side = Endpoint::new(CALLER, ECHO, child.id(), ours);
    println!("{:>9}  {:>22}  {:>22}  {:>22}", "bytes", "fill+read", "bare echo", "segment echo");
    for len in SIZES {
        let source = vec![7_u8; len];
        let once = time(rounds, || {
            there.fill(&source);
            read(there.bytes(len));
            Ok(())
        })?;
        let bare = time(rounds, || {
            there.fill(&source);
            side.send_bare(len)?;
            side.receive()?.ok_or("the echo has gone")?;
            read(back.bytes(len));
            Ok(())
        })?;
        let segments = time(rounds, || {
            side.send(&source)?;
            match side.receive()?.ok_or("the echo has gone")? {
                Arrival::Message(view) => read(&view),
                Arrival::Bare(_) => return Err("the echo took another way".into()),
            }
            Ok(())
        })?;
        println!("{len:>9}  {}  {}  {}", show(once), show(bare), show(segments));
    }
    println!("{:?}", side.pool.stats());
    drop(side);
    child.wait()?;
    Ok(())
}

fn show((median, least): (Duration, Duration)) -> String {
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    format!("{:>8.0} us (min {:>6.0})", us(median), us(least))
}

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["answer", parent, there, back] => reply(parent.parse()?, there.parse()?, back.parse()?),
        [rounds] => call(rounds.parse()?),
        _ => call(50),
    }
}
