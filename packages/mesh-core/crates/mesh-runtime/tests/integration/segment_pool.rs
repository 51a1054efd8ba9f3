//! A pool of shared segments reuses memory, respects its limits, and counts readers.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use mesh_runtime::segment::{FillError, Filled, SegmentLimits, SegmentPool};
use mesh_wire::id::ProcId;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

const SENDER: ProcId = ProcId::new(0, 0);
const A: ProcId = ProcId::new(0, 1);
const B: ProcId = ProcId::new(0, 2);
const MB: usize = 1 << 20;

fn pool(limits: SegmentLimits) -> SegmentPool {
    SegmentPool::new(SENDER, limits)
}

fn fill(pool: &SegmentPool, len: usize, readers: &[ProcId]) -> Filled {
    pool.fill(&[&vec![7; len]], readers).expect("there is space")
}

fn release(pool: &SegmentPool, filled: &Filled, reader: ProcId) {
    pool.release(filled.segment, filled.generation, reader);
}

/// Returns the number of bytes of memory that the kernel counts for a segment.
fn kernel_bytes(filled: &Filled) -> u64 {
    File::from(filled.fd.try_clone().unwrap()).metadata().unwrap().blocks() * 512
}

#[test]
fn a_segment_is_free_after_the_release_of_its_last_reader() {
    let pool = pool(SegmentLimits::default());
    let filled = fill(&pool, MB, &[A, B, A]);
    release(&pool, &filled, A);
    release(&pool, &filled, B);
    assert_eq!(pool.stats().bytes_in_use, MB, "two messages went to A");
    release(&pool, &filled, A);
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert_eq!(fill(&pool, MB, &[A]).segment, filled.segment);
    assert_eq!(pool.stats().fills_warm, 1);
}

#[test]
fn more_readers_may_acquire_a_generation_in_use() {
    let pool = pool(SegmentLimits::default());
    let filled = fill(&pool, MB, &[A]);
    let acquire = |readers: &[ProcId]| pool.acquire(filled.segment, filled.generation, readers);
    assert!(acquire(&[SENDER]) && acquire(&[SENDER, B]));
    release(&pool, &filled, A);
    pool.reader_died(B);
    release(&pool, &filled, SENDER);
    assert_eq!(pool.stats().bytes_in_use, MB, "the sender holds it twice");
    assert!(pool.is_referenced(filled.segment, filled.generation));
    release(&pool, &filled, SENDER);
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert!(!acquire(&[SENDER]), "it is over");
    let next = fill(&pool, MB, &[A]);
    assert_eq!(next.segment, filled.segment);
    assert!(!acquire(&[SENDER]), "this is another use");
    assert!(!pool.is_referenced(filled.segment, filled.generation));
    release(&pool, &filled, SENDER);
    assert_eq!(pool.stats().bytes_in_use, MB);
    assert!(!pool.acquire(77, 1, &[A]), "there is no such segment");
}

#[test]
fn late_and_repeated_releases_change_nothing() {
    let pool = pool(SegmentLimits::default());
    let first = fill(&pool, MB, &[A, B]);
    release(&pool, &first, A);
    release(&pool, &first, A);
    release(&pool, &first, ProcId::new(0, 9));
    assert_eq!(pool.stats().bytes_in_use, MB, "B still reads");
    release(&pool, &first, B);
    let second = fill(&pool, MB, &[A]);
    assert_eq!((second.segment, second.generation), (first.segment, first.generation + 1));
    release(&pool, &first, A);
    assert_eq!(pool.stats().bytes_in_use, MB, "the release is of the use before");
    pool.release(77, 1, A);
}

#[test]
fn a_dead_reader_has_no_references() {
    let pool = pool(SegmentLimits::default());
    let segments: Vec<_> = (0..3).map(|_| fill(&pool, MB, &[A, B])).collect();
    segments.iter().for_each(|filled| release(&pool, filled, B));
    assert_eq!(pool.stats().bytes_in_use, 3 * MB);
    pool.reader_died(A);
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn the_segment_released_last_is_used_first() {
    let pool = pool(SegmentLimits::default());
    let segments: Vec<_> = (0..3).map(|_| fill(&pool, MB, &[A])).collect();
    for index in [2, 0, 1] {
        release(&pool, &segments[index], A);
    }
    let order: Vec<_> = (0..3).map(|_| fill(&pool, MB, &[A]).segment).collect();
    assert_eq!(order, [1, 0, 2]);
}

#[test]
fn small_messages_do_not_occupy_large_warm_segments() {
    let pool = pool(SegmentLimits::default());
    let large = fill(&pool, 32 * MB, &[A]);
    release(&pool, &large, A);
    let small = fill(&pool, MB, &[A]);
    assert_ne!(small.segment, large.segment);
    assert_eq!(fill(&pool, 32 * MB, &[A]).segment, large.segment);
}

#[test]
fn a_full_pool_refuses_messages_until_a_reader_releases_one() {
    let pool = pool(SegmentLimits { bytes_max: 4 * MB, ..SegmentLimits::default() });
    let segments: Vec<_> = (0..4).map(|_| fill(&pool, MB, &[A])).collect();
    let error = pool.fill(&[&[1; 100]], &[A]).unwrap_err();
    assert!(matches!(error, FillError::Full { bytes_in_use } if bytes_in_use == 4 * MB), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!((pool.stats().bytes, pool.stats().fills_refused), (4 * MB, 1));
    release(&pool, &segments[2], A);
    fill(&pool, MB, &[A]);
}

#[test]
fn a_message_larger_than_the_pool_is_refused_for_good() {
    let pool = pool(SegmentLimits { bytes_max: MB, ..SegmentLimits::default() });
    let error = pool.fill(&[&vec![1; MB + 1]], &[A]).unwrap_err();
    assert!(matches!(error, FillError::TooLarge { max: MB, .. }), "{error}");
    fill(&pool, MB, &[A]);
}

#[test]
fn the_number_of_descriptors_is_bounded() {
    let pool = pool(SegmentLimits { segments_max: 2, ..SegmentLimits::default() });
    let segments = [fill(&pool, MB, &[A]), fill(&pool, 16 * MB, &[A])];
    assert!(matches!(pool.fill(&[b"x"], &[A]), Err(FillError::Full { .. })));
    release(&pool, &segments[1], A);
    assert_eq!(fill(&pool, MB, &[A]).segment, 1, "a large one is better than none");
}

#[test]
fn idle_memory_is_freed_for_messages_of_another_size() {
    let limits = SegmentLimits { bytes_max: 8 * MB, ..SegmentLimits::default() };
    let pool = pool(limits);
    let old: Vec<_> = (0..4).map(|_| fill(&pool, 2 * MB, &[A])).collect();
    old.iter().for_each(|filled| release(&pool, filled, A));
    let large = fill(&pool, 7 * MB, &[A]);
    assert!(pool.stats().bytes <= 8 * MB, "{:?}", pool.stats());
    let idle: u64 = old.iter().map(kernel_bytes).sum();
    assert_eq!(kernel_bytes(&large) + idle, pool.stats().bytes as u64);
}

#[test]
fn idle_memory_over_the_limit_is_released_oldest_first() {
    let limits = SegmentLimits { idle_bytes_max: 2 * MB, ..SegmentLimits::default() };
    let pool = pool(limits);
    let segments: Vec<_> = (0..4).map(|_| fill(&pool, MB, &[A])).collect();
    segments.iter().for_each(|filled| release(&pool, filled, A));
    assert_eq!(pool.stats().bytes, 2 * MB);
    let kept: Vec<_> = segments.iter().map(kernel_bytes).collect();
    assert_eq!(kept, [0, 0, MB as u64, MB as u64]);
}

#[test]
fn a_large_segment_stays_warm_until_two_sweeps_find_it_idle() {
    let pool = pool(SegmentLimits { idle_bytes_max: MB, ..SegmentLimits::default() });
    let filled = fill(&pool, 8 * MB, &[A]);
    release(&pool, &filled, A);
    assert_eq!(pool.stats().bytes, 8 * MB, "the youngest is kept");
    pool.sweep();
    assert_eq!(pool.stats().bytes, 8 * MB, "it was used since the sweep before");
    pool.sweep();
    assert_eq!((pool.stats().bytes, kernel_bytes(&filled)), (0, 0));
    let again = fill(&pool, 8 * MB, &[A]);
    assert_eq!(again.segment, filled.segment, "the descriptor is known to readers already");
    assert_eq!(kernel_bytes(&again), 8 * MB as u64);
}

#[test]
fn a_sweep_keeps_segments_that_are_read() {
    let pool = pool(SegmentLimits::default());
    let filled = fill(&pool, MB, &[A]);
    pool.sweep();
    pool.sweep();
    assert_eq!(kernel_bytes(&filled), MB as u64);
}

#[test]
fn a_message_without_readers_is_refused() {
    let pool = pool(SegmentLimits::default());
    assert!(matches!(pool.fill(&[b"x"], &[]), Err(FillError::NoReaders)));
    assert_eq!(pool.stats().bytes, 0);
}
