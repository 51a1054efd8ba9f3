//! Shared segments of this process, for sending and for receiving.

use crate::message::Message;
use mesh_runtime::engine::Engine;
use mesh_runtime::engine::wire::Descriptors;
use mesh_runtime::segment::{
    CacheLimits, DirectReceive, FillError, Filled, Mapping, Received, SegmentCache, SegmentLimits,
    SegmentPool, extend_fresh,
};
use mesh_wire::frame::{PART_COUNT_MAX, PART_LEN, Part, SegmentRef};
use mesh_wire::id::ProcId;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Alignment of bytes that are forwarded without a copy: no array element is wider.
const PASS_ALIGN: u64 = 16;

/// The sending and the receiving side of shared memory.
pub(crate) struct Segments {
    me: ProcId,
    pool: Arc<SegmentPool>,
    cache: SegmentCache,
    descriptors: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

/// Alignment of inline parts relative to the first of them: a cache line, so that the receiver can
/// place them in memory without a copy.
const INLINE_ALIGN: usize = 64;

/// The large parts of a message, ready to be combined with its metadata and body.
pub(crate) struct Packed<'a> {
    parts: Vec<Part>,
    /// Parts that do not fit into shared memory, or whose receiver is on another host.
    inline: Vec<&'a [u8]>,
}

impl<'a> Packed<'a> {
    /// A message without large parts.
    pub(crate) fn none() -> Self {
        Self { parts: Vec::new(), inline: Vec::new() }
    }

    /// Puts all buffers into the message itself.
    pub(crate) fn inside(buffers: &[&'a [u8]], body_len: usize) -> Result<Self, &'static str> {
        check_count(buffers)?;
        Ok(Self::with_places(vec![None; buffers.len()], buffers, body_len))
    }

    /// Creates a part for each buffer: its existing location, or a position behind the body.
    fn with_places(places: Vec<Option<Part>>, buffers: &[&'a [u8]], body_len: usize) -> Self {
        let (mut inline, mut end) = (Vec::new(), body_len);
        let in_place = |(place, buffer): (Option<Part>, &&'a [u8])| {
            place.unwrap_or_else(|| {
                let start = body_len + (end - body_len).next_multiple_of(INLINE_ALIGN);
                end = start + buffer.len();
                inline.push(*buffer);
                Part::inline(start as u64, buffer.len() as u64)
            })
        };
        let parts = places.into_iter().zip(buffers).map(in_place).collect();
        Self { parts, inline }
    }

    /// The number of part descriptors.
    pub(crate) fn part_count(&self) -> u8 {
        u8::try_from(self.parts.len()).expect("the caller has checked the count")
    }

    /// Whether the frame itself carries parts.
    pub(crate) fn is_inline(&self) -> bool {
        !self.inline.is_empty()
    }

    /// The bytes of descriptors and inline parts, an upper bound that includes padding.
    pub(crate) fn len(&self) -> usize {
        let padded = |buffer: &&[u8]| buffer.len().next_multiple_of(INLINE_ALIGN);
        self.parts.len() * PART_LEN + self.inline.iter().map(padded).sum::<usize>()
    }

    /// Concatenates metadata, descriptors, body and inline parts. This is the only copy of parts
    /// that do not use shared memory.
    pub(crate) fn tail(&self, meta: &[u8], body: &[u8]) -> bytes::Bytes {
        let mut tail = Vec::with_capacity(meta.len() + body.len() + self.len());
        tail.extend_from_slice(meta);
        tail.extend(self.parts.iter().flat_map(Part::encode));
        tail.extend_from_slice(body);
        let inline_at = tail.len();
        for buffer in &self.inline {
            tail.resize(inline_at + (tail.len() - inline_at).next_multiple_of(INLINE_ALIGN), 0);
            extend_fresh(&mut tail, buffer);
        }
        tail.into()
    }
}

impl Segments {
    /// Creates the segments of process `me`, which hold up to `bytes_max` bytes of messages in
    /// flight.
    pub(crate) fn new(me: ProcId, bytes_max: usize) -> Self {
        let limits = SegmentLimits { bytes_max, ..SegmentLimits::default() };
        Self {
            me,
            pool: Arc::new(SegmentPool::new(me, limits)),
            cache: SegmentCache::new(CacheLimits::default()),
            descriptors: Mutex::default(),
        }
    }

    /// Places buffers where `readers` can map them, or inline if that is impossible. Buffers that
    /// came from the destination itself are passed by reference; the rest is copied.
    pub(crate) fn pack<'a>(
        &self,
        engine: &Engine,
        body_len: usize,
        buffers: &[&'a [u8]],
        readers: &[ProcId],
    ) -> Result<Packed<'a>, &'static str> {
        if buffers.is_empty() {
            return Ok(Packed::none());
        }
        check_count(buffers)?;
        let mut parts = vec![None; buffers.len()];
        if readers.iter().all(|reader| reader.host == self.me.host) {
            self.pass_by_reference(engine, buffers, readers, &mut parts);
            self.copy(engine, buffers, readers, &mut parts)?;
        }
        Ok(Packed::with_places(parts, buffers, body_len))
    }

    /// Finds the buffers that can be passed to every reader without a copy.
    ///
    /// These are received bytes that have not been modified. They are either in a segment of this
    /// process, which the readers then also reference, or in a segment of the only reader, which
    /// acquires its own reference when it gets the message: our release follows on the same
    /// connection. A segment of a third process is excluded, because its readers would depend on
    /// this process: if this process dies, the owner reclaims the segment.
    fn pass_by_reference(
        &self,
        engine: &Engine,
        buffers: &[&[u8]],
        readers: &[ProcId],
        parts: &mut [Option<Part>],
    ) {
        let may_name = |received: &Received| {
            let Part { owner, offset, .. } = received.part;
            let is_known = owner == self.me || readers.iter().all(|reader| *reader == owner);
            is_known && offset.is_multiple_of(PASS_ALIGN)
        };
        let found = |buffer: &&[u8]| self.cache.received(buffer).filter(may_name);
        let found: Vec<_> = buffers.iter().map(found).collect();
        if found.iter().all(Option::is_none) {
            return;
        }
        for (at, part) in worthwhile(&found) {
            parts[at] = Some(part);
        }
        for segment_ref in SegmentRef::all(parts.iter().copied().flatten()) {
            let SegmentRef { owner, segment, generation } = segment_ref;
            if owner != self.me {
                continue;
            }
            if self.pool.acquire(segment, generation, readers) {
                self.announce(engine, segment, None, readers);
            } else {
                let is_of_it = |part: &Part| part.segment_ref() == Some(segment_ref);
                parts.iter_mut().for_each(|part| *part = part.filter(|part| !is_of_it(part)));
            }
        }
    }

    /// Copies the buffers that have no location yet into a segment of this process, if they fit.
    fn copy(
        &self,
        engine: &Engine,
        buffers: &[&[u8]],
        readers: &[ProcId],
        parts: &mut [Option<Part>],
    ) -> Result<(), &'static str> {
        let is_left = |(_, part): &(&&[u8], &mut Option<Part>)| part.is_none();
        let (left, places): (Vec<&[u8]>, Vec<_>) =
            buffers.iter().zip(parts).filter(is_left).map(|(buffer, part)| (*buffer, part)).unzip();
        if left.is_empty() {
            return Ok(());
        }
        match self.pool.fill(&left, readers) {
            Ok(filled) => {
                self.announce(engine, filled.segment, Some(&filled.fd), readers);
                places.into_iter().zip(filled.parts).for_each(|(place, part)| *place = Some(part));
                Ok(())
            }
            Err(FillError::Forked) => Err("this process was forked from a running one"),
            // The pool is full or the kernel refused memory: inline parts are slower, but they
            // arrive.
            Err(_) => Ok(()),
        }
    }

    /// Ensures that `readers` have the descriptor of a segment of this process, which may be new.
    fn announce(
        &self,
        engine: &Engine,
        segment: u32,
        fd: Option<&Arc<OwnedFd>>,
        readers: &[ProcId],
    ) {
        let is_new = fd.is_some_and(|fd| self.is_new(segment, fd));
        engine.with_node(|node| node.announce_all(segment, is_new, readers));
    }

    /// Whether the descriptor of a segment of this process has changed.
    fn is_new(&self, segment: u32, fd: &Arc<OwnedFd>) -> bool {
        let before = self.lock().insert(segment, Arc::clone(fd));
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, fd));
        if is_new {
            // Needed for parts that return to this process. A failure shows when the message is
            // opened.
            let _ = self.cache.learn(self.me, segment, Arc::clone(fd));
        }
        is_new
    }

    /// Releases the references of a message that was not sent.
    pub(crate) fn unpack(&self, packed: &Packed<'_>, readers: &[ProcId]) {
        for SegmentRef { owner, segment, generation } in
            SegmentRef::all(packed.parts.iter().copied())
        {
            if owner == self.me {
                for reader in readers {
                    self.pool.release(segment, generation, *reader);
                }
            }
        }
    }

    /// Maps the shared parts of a message, in order, with `None` for each inline part. The
    /// references of the message are released separately: each one when the last mapping of its use
    /// is dropped.
    pub(crate) fn open(
        &self,
        engine: &Arc<Engine>,
        message: &Message,
    ) -> Result<Vec<Option<Mapping>>, String> {
        let parts: Vec<Part> = message.frame.parts().collect();
        let mut opened: Vec<_> = parts.iter().map(|_| None).collect();
        let mut left = message.segment_refs().iter();
        for segment_ref in left.by_ref() {
            if let Err(error) = self.open_segment_ref(engine, *segment_ref, &parts, &mut opened) {
                for segment_ref in std::iter::once(segment_ref).chain(left) {
                    release(engine, *segment_ref);
                }
                return Err(error);
            }
        }
        let is_open = |(part, mapping): (&Part, &Option<_>)| {
            part.segment_ref().is_none() == mapping.is_none()
        };
        if parts.iter().zip(&opened).all(is_open) {
            Ok(opened)
        } else {
            Err("a part lies in a segment of neither side: check that both sides match".to_owned())
        }
    }

    fn open_segment_ref(
        &self,
        engine: &Arc<Engine>,
        segment_ref: SegmentRef,
        parts: &[Part],
        opened: &mut [Option<Mapping>],
    ) -> Result<(), String> {
        if segment_ref.owner == self.me
            && !self.pool.is_referenced(segment_ref.segment, segment_ref.generation)
        {
            return Err("a part was opened after it was released".to_owned());
        }
        let is_of_it = |part: &Part| part.segment_ref() == Some(segment_ref);
        let theirs: Vec<Part> = parts.iter().copied().filter(is_of_it).collect();
        let engine = Arc::clone(engine);
        let on_drop = Box::new(move || release(&engine, segment_ref));
        let mappings = self.cache.open(&theirs, on_drop).map_err(|error| error.to_string())?;
        let places = opened.iter_mut().zip(parts).filter(|(_, part)| is_of_it(part));
        places.zip(mappings).for_each(|((place, _), mapping)| *place = Some(mapping));
        Ok(())
    }

    /// Bytes of shared memory that readers still reference.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.pool.stats().bytes_in_use
    }

    /// Makes the pages of open messages private, so that a forked child can continue to read them.
    pub(crate) fn prepare_fork(&self) -> std::io::Result<()> {
        self.cache.prepare_fork()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Arc<OwnedFd>>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Selects the received buffers that are passed by reference, with their indexes. For each use of a
/// segment, these are buffers that do not overlap, provided that together they make up at least
/// half of the memory that the owner has to keep.
fn worthwhile(found: &[Option<Received>]) -> Vec<(usize, Part)> {
    let mut named: Vec<(usize, Received)> = Vec::new();
    for (at, received) in found.iter().enumerate() {
        let Some(received) = *received else { continue };
        let overlaps = |(_, other): &(usize, Received)| is_overlap(&other.part, &received.part);
        if !named.iter().any(overlaps) {
            named.push((at, received));
        }
    }
    let is_worth = |received: &Received| {
        let is_in_same_use =
            |other: &&(usize, Received)| other.1.part.segment_ref() == received.part.segment_ref();
        let len: u64 = named.iter().filter(is_in_same_use).map(|other| other.1.part.len).sum();
        len.saturating_mul(2) >= received.message_len as u64
    };
    let worth = named.iter().filter(|(_, received)| is_worth(received));
    worth.map(|(at, received)| (*at, received.part)).collect()
}

fn check_count(buffers: &[&[u8]]) -> Result<(), &'static str> {
    if buffers.len() > PART_COUNT_MAX {
        return Err("more than 255 large buffers in one message: join some of them");
    }
    Ok(())
}

fn is_overlap(one: &Part, other: &Part) -> bool {
    one.segment_ref() == other.segment_ref()
        && one.offset < other.offset + other.len
        && other.offset < one.offset + one.len
}

fn release(engine: &Engine, segment_ref: SegmentRef) {
    engine.with_node(|node| {
        node.release(segment_ref.owner, segment_ref.segment, segment_ref.generation)
    });
}

impl Descriptors for Segments {
    fn get(&self, segment: u32) -> Option<Arc<OwnedFd>> {
        self.lock().get(&segment).cloned()
    }

    fn learn(&self, owner: ProcId, segment: u32, descriptor: OwnedFd) {
        // A failure shows when the message is opened.
        let _ = self.cache.learn(owner, segment, descriptor);
    }

    fn acquired(&self, segment: u32, generation: u32) {
        // If that use is over, nothing is referenced, and opening the message fails.
        self.pool.acquire(segment, generation, &[self.me]);
    }

    fn released(&self, reader: ProcId, segment: u32, generation: u32) {
        self.pool.release(segment, generation, reader);
    }

    fn sweep(&self) -> bool {
        self.pool.sweep();
        let stats = self.pool.stats();
        stats.bytes > stats.bytes_in_use
    }

    fn begin_direct_receive(&self, len: usize) -> DirectReceive {
        self.pool.begin_direct_receive(len)
    }

    fn filled(&self, filled: &Filled) -> bool {
        self.is_new(filled.segment, &filled.fd)
    }

    fn peer_died(&self, proc: ProcId) {
        self.pool.reader_died(proc);
        self.cache.owner_died(proc);
    }
}
