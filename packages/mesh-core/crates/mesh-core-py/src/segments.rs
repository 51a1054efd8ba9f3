//! Shared segments of this process: what it sends through and what it has been sent.

use crate::message::Message;
use mesh_runtime::engine::Engine;
use mesh_runtime::engine::wire::{Descriptors, tail_of};
use mesh_runtime::segment::{
    CacheLimits, FillError, Filled, Mapping, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::frame::{PART_COUNT_MAX, Part};
use mesh_wire::id::ProcId;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Both ends of shared memory.
pub(crate) struct Segments {
    pool: SegmentPool,
    cache: SegmentCache,
    descriptors: Mutex<HashMap<u32, Arc<OwnedFd>>>,
}

/// A message body with its large parts, ready to be put behind a meta.
pub(crate) struct Packed {
    parts: Vec<Part>,
    /// Parts that found no room in shared memory, or whose receiver is elsewhere.
    inline: Vec<u8>,
}

impl Packed {
    /// A body alone.
    pub(crate) fn none() -> Self {
        Self { parts: Vec::new(), inline: Vec::new() }
    }

    /// How many descriptors there are.
    pub(crate) fn part_count(&self) -> u8 {
        u8::try_from(self.parts.len()).expect("the caller has checked the count")
    }

    /// Meta, descriptors, body, inline parts.
    pub(crate) fn tail(&self, meta: &[u8], body: &[u8]) -> bytes::Bytes {
        if self.parts.is_empty() {
            return tail_of(meta, &[], body);
        }
        let descriptors: Vec<u8> = self.parts.iter().flat_map(Part::encode).collect();
        if self.inline.is_empty() {
            return tail_of(meta, &descriptors, body);
        }
        tail_of(meta, &descriptors, &[body, &self.inline].concat())
    }

    /// Bytes that the frame carries for the parts.
    pub(crate) fn inline_len(&self) -> usize {
        self.inline.len()
    }
}

impl Segments {
    /// Empty, with room for `bytes_max` of messages under way.
    pub(crate) fn new(bytes_max: usize) -> Self {
        let limits = SegmentLimits { bytes_max, ..SegmentLimits::default() };
        Self {
            pool: SegmentPool::new(limits),
            cache: SegmentCache::new(CacheLimits::default()),
            descriptors: Mutex::default(),
        }
    }

    /// Copies buffers to where `readers` can map them, or inline where that cannot be.
    pub(crate) fn pack(
        &self,
        engine: &Engine,
        body_len: usize,
        buffers: &[&[u8]],
        readers: &[ProcId],
    ) -> Result<Packed, &'static str> {
        if buffers.is_empty() {
            return Ok(Packed::none());
        }
        if buffers.len() > PART_COUNT_MAX {
            return Err("more than 255 large buffers in one message: join some of them");
        }
        let me = engine.me();
        let is_local = readers.iter().all(|reader| reader.host == me.host);
        if is_local {
            match self.pool.fill(buffers, readers) {
                Ok(filled) => return Ok(self.announce(engine, filled, readers)),
                Err(FillError::Forked) => return Err("this process was forked from a running one"),
                // Full or refused by the kernel: slower, but it arrives.
                Err(_) => {}
            }
        }
        let mut inline = Vec::with_capacity(buffers.iter().map(|buffer| buffer.len()).sum());
        let mut parts = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let offset = (body_len + inline.len()) as u64;
            let len = buffer.len() as u64;
            parts.push(Part { segment: Part::INLINE, generation: 0, offset, len });
            inline.extend_from_slice(buffer);
        }
        Ok(Packed { parts, inline })
    }

    fn announce(&self, engine: &Engine, filled: Filled, readers: &[ProcId]) -> Packed {
        let segment = filled.segment;
        let before = self.lock().insert(segment, Arc::clone(&filled.fd));
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, &filled.fd));
        let me = engine.me();
        if readers.contains(&me) {
            self.learn_own(me, segment, is_new, &filled.fd);
        }
        engine.with_node(|node| {
            if is_new {
                node.renounce(segment);
            }
            for reader in readers {
                node.announce(*reader, segment);
            }
        });
        Packed { parts: filled.parts, inline: Vec::new() }
    }

    /// A message to this process itself: the descriptor does not travel.
    fn learn_own(&self, me: ProcId, segment: u32, is_new: bool, fd: &Arc<OwnedFd>) {
        if is_new && let Ok(copy) = fd.try_clone() {
            // A refusal shows when the message is opened.
            let _ = self.cache.learn(me, segment, copy);
        }
    }

    /// Gives back what a message that was not sent holds.
    pub(crate) fn unpack(&self, packed: &Packed, readers: &[ProcId]) {
        if let Some(part) = packed.parts.first()
            && part.segment != Part::INLINE
        {
            for reader in readers {
                self.pool.release(part.segment, part.generation, *reader);
            }
        }
    }

    /// Maps the shared parts of a message; they are given back when the last is dropped.
    pub(crate) fn open(
        &self,
        engine: &Arc<Engine>,
        message: &Message,
    ) -> Result<Vec<Mapping>, String> {
        let parts: Vec<Part> = message.frame.parts().collect();
        let owner = message.frame.head.from.proc;
        let Some(first) = parts.first().copied() else { return Ok(Vec::new()) };
        let engine = Arc::clone(engine);
        let on_drop = Box::new(move || {
            engine.with_node(|node| node.release(owner, first.segment, first.generation));
        });
        self.cache.open(owner, &parts, on_drop).map_err(|error| error.to_string())
    }

    /// Bytes of shared memory that readers hold.
    pub(crate) fn bytes_in_use(&self) -> usize {
        self.pool.stats().bytes_in_use
    }

    /// Gives open messages pages of their own, so that a fork may go on reading them.
    pub(crate) fn prepare_fork(&self) -> std::io::Result<()> {
        self.cache.prepare_fork()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Arc<OwnedFd>>> {
        self.descriptors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Descriptors for Segments {
    fn get(&self, segment: u32) -> Option<Arc<OwnedFd>> {
        self.lock().get(&segment).cloned()
    }

    fn learn(&self, owner: ProcId, segment: u32, descriptor: OwnedFd) {
        // A refusal shows when the message is opened.
        let _ = self.cache.learn(owner, segment, descriptor);
    }

    fn released(&self, reader: ProcId, segment: u32, generation: u32) {
        self.pool.release(segment, generation, reader);
    }

    fn sweep(&self) -> bool {
        self.pool.sweep();
        let stats = self.pool.stats();
        stats.bytes > stats.bytes_in_use
    }

    fn buried(&self, proc: ProcId) {
        self.pool.reader_died(proc);
        self.cache.owner_died(proc);
    }
}
