//! Memory that is allocated as shared memory: each process that uses it maps it once.

use crate::memory::shared_map::SharedMap;
use crate::process::generation;
use crate::span::Span;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

const PAGE: usize = 4096;
/// The minimum length of a segment, which only reserves address space; memory is committed on use.
const SEGMENT_LEN_MIN: usize = 256 << 20;

/// The shared memory of a process: memory files, which contain blocks.
#[derive(Debug, Default)]
pub struct Arena {
    segments: Mutex<Vec<Segment>>,
}

#[derive(Debug)]
struct Segment {
    map: Arc<SharedMap>,
    /// The free ranges by offset, with their lengths; no two of them are adjacent.
    free: BTreeMap<usize, usize>,
}

/// A range of the arena, which is freed when this is dropped.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    /// The number of the memory file.
    pub segment: u32,
    /// The offset in the memory file.
    pub offset: usize,
    /// The location in this process, with the requested length.
    pub span: Span,
    map: Arc<SharedMap>,
    /// The generation of the process that allocated the block.
    generation: usize,
}

impl Arena {
    /// Allocates a block of `len` zero bytes that begins at a page boundary.
    ///
    /// # Errors
    /// The system does not provide the memory.
    pub fn allocate(self: &Arc<Self>, len: usize) -> io::Result<Block> {
        let padded_len = len.max(1).next_multiple_of(PAGE);
        let mut segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let found = segments.iter_mut().enumerate().find_map(|(number, segment)| {
            segment.take(padded_len).map(|offset| (number, offset, Arc::clone(&segment.map)))
        });
        let (number, offset, map) = match found {
            Some(found) => found,
            None => {
                let mut segment = Segment::create(padded_len.max(SEGMENT_LEN_MIN))?;
                let offset = segment.take(padded_len).expect("a new segment is large enough");
                let map = Arc::clone(&segment.map);
                segments.push(segment);
                (segments.len() - 1, offset, map)
            }
        };
        drop(segments);
        let span = map.span().part(offset, len).expect("the range is in this segment");
        map.populate(map.span().part(offset, padded_len).expect("the range is in this segment"));
        let segment = u32::try_from(number).map_err(io::Error::other)?;
        let generation = generation();
        Ok(Block { arena: Arc::clone(self), segment, offset, span, map, generation })
    }

    /// Returns the segment and the offset of memory, if all of it is in one segment of the arena.
    pub fn locate(&self, span: Span) -> Option<(u32, usize)> {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        let number = segments.iter().position(|segment| segment.map.span().contains(span))?;
        let offset = span.start - segments[number].map.span().start;
        Some((u32::try_from(number).ok()?, offset))
    }

    /// The memory file of a segment.
    pub fn segment(&self, number: u32) -> Option<Arc<SharedMap>> {
        let segments = self.segments.lock().unwrap_or_else(PoisonError::into_inner);
        segments.get(number as usize).map(|segment| Arc::clone(&segment.map))
    }
}

impl Segment {
    fn create(len: usize) -> io::Result<Self> {
        let map = Arc::new(SharedMap::create("mesh-rdma-arena", len)?);
        Ok(Self { map, free: BTreeMap::from([(0, len)]) })
    }

    /// Takes the first free range that is long enough.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (offset, free_len) =
            self.free.iter().find(|(_, free)| **free >= len).map(|(at, free)| (*at, *free))?;
        self.free.remove(&offset);
        if free_len > len {
            self.free.insert(offset + len, free_len - len);
        }
        Some(offset)
    }

    /// Frees a range, and merges it with adjacent free ranges.
    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some((before, free_len)) = self.free.range(..offset).next_back()
            && before + free_len == offset
        {
            (offset, len) = (*before, len + free_len);
        }
        if let Some(free_len) = self.free.remove(&(offset + len)) {
            len += free_len;
        }
        self.free.insert(offset, len);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.generation != generation() {
            // In a forked child, the block belongs to the parent.
            return;
        }
        let padded_len = self.span.len.max(1).next_multiple_of(PAGE);
        // The memory is emptied before the range is free, so that the next block contains zeros.
        self.map.empty(self.offset as u64, padded_len as u64);
        let mut segments = self.arena.segments.lock().unwrap_or_else(PoisonError::into_inner);
        segments[self.segment as usize].give_back(self.offset, padded_len);
    }
}
