//! Large messages are copied by several threads and arrive complete.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]
#![expect(unsafe_code, reason = "reads what was written to memory without a value")]

use mesh_runtime::segment::{CacheLimits, SegmentCache, SegmentLimits, SegmentPool, copy_fresh};
use mesh_wire::id::ProcId;
use std::mem::MaybeUninit;
use std::thread;

const SENDER: ProcId = ProcId::new(0, 1);
const READER: ProcId = ProcId::new(0, 2);

/// Returns bytes in which all groups of 8 differ, so that a misplaced range is noticed.
fn numbered(seed: u64, len: usize) -> Vec<u8> {
    let word = |at: usize| ((at as u64 / 8) ^ (seed << 40)).to_le_bytes()[at % 8];
    (0..len).map(word).collect()
}

/// Fills twice, into cold and into warm pages, and compares the bytes that a reader sees.
fn check(pool: &SegmentPool, seed: u64, lens: &[usize]) {
    for round in 0..2 {
        let buffers: Vec<_> = lens.iter().map(|len| numbered(seed ^ round, *len)).collect();
        let slices: Vec<_> = buffers.iter().map(Vec::as_slice).collect();
        let filled = pool.fill(&slices, &[READER]).unwrap();
        let cache = SegmentCache::new(CacheLimits::default());
        cache.learn(SENDER, filled.segment, filled.fd.try_clone().unwrap()).unwrap();
        let views = cache.open(&filled.parts, Box::new(|| {})).unwrap();
        assert!(views.iter().zip(&buffers).all(|(view, buffer)| view[..] == buffer[..]));
        pool.release(filled.segment, filled.generation, READER);
    }
}

#[test]
fn large_buffers_arrive_complete_with_any_number_of_copy_threads() {
    for copy_threads_max in [0, 1, 2, 8] {
        let pool =
            SegmentPool::new(SENDER, SegmentLimits { copy_threads_max, ..Default::default() });
        check(&pool, 1, &[9 << 20]);
        check(&pool, 2, &[3, (4 << 20) + 1, 0, 512 << 10, (5 << 20) - 7]);
        // Half of the bytes go to warm pages, half to new ones.
        check(&pool, 3, &[(15 << 20) + 5]);
    }
}

#[test]
fn several_threads_may_send_large_messages_concurrently() {
    let pool = SegmentPool::new(SENDER, SegmentLimits::default());
    thread::scope(|scope| {
        for seed in 0..4 {
            let pool = &pool;
            scope.spawn(move || check(pool, seed << 8, &[6 << 20, 1 << 20]));
        }
    });
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn every_byte_is_copied_to_new_memory_and_no_other_byte_is_changed() {
    for (start, len) in [(0, 0), (3, 5), (0, 4 << 20), (7, (9 << 20) + 1), (64, 16 << 20)] {
        let source = numbered(5, len);
        let mut target = vec![MaybeUninit::new(0xEE); start + len + 1];
        copy_fresh(&source, &mut target[start..start + len]);
        // SAFETY: every byte has a value from the start.
        let target: Vec<u8> = target.iter().map(|byte| unsafe { byte.assume_init() }).collect();
        assert!(target[start..start + len] == source[..], "{len} bytes at {start}");
        assert!(target[..start].iter().all(|byte| *byte == 0xEE) && target[start + len] == 0xEE);
    }
}
