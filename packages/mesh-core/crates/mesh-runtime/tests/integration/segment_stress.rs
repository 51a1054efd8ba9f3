//! Many threads fill, read, write and release at the same time; no message changes.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use mesh_runtime::segment::{
    CacheLimits, FillError, Filled, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::id::ProcId;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread;

const SENDER: ProcId = ProcId::new(0, 1);
const LIMITS: SegmentLimits = SegmentLimits {
    bytes_max: 2 << 20,
    idle_bytes_max: 1 << 20,
    segments_max: 6,
    copy_threads_max: 2,
};

/// A deterministic generator of numbers.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// Announces a segment once, before the message that needs it, as a connection does.
fn announce(cache: &SegmentCache, known: &Mutex<HashSet<u32>>, filled: &Filled) {
    let mut known = known.lock().unwrap();
    if known.insert(filled.segment) {
        cache.learn(SENDER, filled.segment, filled.fd.try_clone().unwrap()).unwrap();
    }
}

/// Sends messages to itself as `reader` and checks their bytes.
fn exchange(
    pool: &Arc<SegmentPool>,
    cache: &SegmentCache,
    known: &Mutex<HashSet<u32>>,
    reader: ProcId,
) {
    let mut numbers = Numbers(u64::from(reader.slot));
    let mut messages = Vec::new();
    for round in 0..300_u32 {
        let value = (round as u8) ^ (reader.slot as u8) << 5;
        let bytes = vec![value; 1 + numbers.below(400 << 10)];
        match pool.fill(&[&bytes, &bytes[..1]], &[reader]) {
            Ok(filled) => {
                announce(cache, known, &filled);
                let (segment, generation) = (filled.segment, filled.generation);
                let pool = Arc::clone(pool);
                let on_drop = Box::new(move || pool.release(segment, generation, reader));
                messages.push((value, cache.open(&filled.parts, on_drop).unwrap()));
            }
            Err(FillError::Full { .. }) => messages.clear(),
            Err(error) => panic!("{error}"),
        }
        if !messages.is_empty() && numbers.below(3) > 0 {
            let (value, mut views) = messages.swap_remove(numbers.below(messages.len()));
            assert!(views.iter().all(|view| view.iter().all(|byte| *byte == value)));
            let start = numbers.below(views[0].len());
            views[0][start..].fill(!value);
        }
    }
}

#[test]
fn no_message_is_mixed_up_with_another() {
    let pool = Arc::new(SegmentPool::new(SENDER, LIMITS));
    let cache = SegmentCache::new(CacheLimits::default());
    let known = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for slot in 2..6 {
            let reader = ProcId::new(0, slot);
            let (pool, cache, known) = (&pool, &cache, &known);
            scope.spawn(move || exchange(pool, cache, known, reader));
        }
        for _ in 0..200 {
            assert!(pool.stats().bytes <= LIMITS.bytes_max);
            pool.sweep();
            thread::yield_now();
        }
    });
    let stats = pool.stats();
    assert_eq!(stats.bytes_in_use, 0, "{stats:?}");
    assert!(stats.bytes <= LIMITS.idle_bytes_max && stats.segments <= 6, "{stats:?}");
    assert!(stats.fills > 100, "{stats:?}");
}
