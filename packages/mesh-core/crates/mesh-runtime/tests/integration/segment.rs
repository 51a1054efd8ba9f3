//! Messages in shared segments, as the sender and its readers see them.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use mesh_runtime::segment::{
    CacheLimits, Filled, Mapping, OnDrop, OpenError, SegmentCache, SegmentLimits, SegmentPool,
};
use mesh_wire::frame::Part;
use mesh_wire::id::ProcId;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const SENDER: ProcId = ProcId::new(0, 1);
const READER: ProcId = ProcId::new(0, 2);
const OTHER: ProcId = ProcId::new(0, 3);
/// Long enough for clean and written pages in every arrangement.
const LEN: usize = 3 << 20;

fn pool() -> SegmentPool {
    SegmentPool::new(SENDER, SegmentLimits::default())
}

fn cache() -> SegmentCache {
    SegmentCache::new(CacheLimits::default())
}

fn learn(cache: &SegmentCache, filled: &Filled) {
    let fd = filled.fd.try_clone().expect("there are descriptors left");
    cache.learn(SENDER, filled.segment, fd).expect("a segment of a pool is accepted");
}

fn nothing() -> OnDrop {
    Box::new(|| {})
}

fn open(cache: &SegmentCache, filled: &Filled) -> Vec<Mapping> {
    cache.open(&filled.parts, nothing()).expect("a message of a pool can be opened")
}

/// Returns bytes that differ from page to page and from seed to seed.
fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 64) as u8 ^ (at >> 14) as u8 ^ seed).collect()
}

#[test]
fn a_reader_sees_every_buffer_aligned_and_in_order() {
    let (pool, cache) = (pool(), cache());
    let (long, short) = (pattern(1, LEN + 13), pattern(2, 5));
    let filled = pool.fill(&[&long, b"", &short], &[READER]).unwrap();
    learn(&cache, &filled);
    let views = open(&cache, &filled);
    assert_eq!(views.iter().map(|view| view.len()).collect::<Vec<_>>(), [LEN + 13, 0, 5]);
    assert!(views[0][..] == long[..] && views[1].is_empty() && views[2][..] == short[..]);
    assert!(views.iter().all(|view| view.as_mut_ptr().addr().is_multiple_of(64)));
}

#[test]
fn writes_of_a_reader_are_private_to_its_view() {
    let (pool, ours, theirs) = (pool(), cache(), cache());
    let bytes = pattern(1, LEN);
    let filled = pool.fill(&[&bytes], &[READER, OTHER]).unwrap();
    learn(&ours, &filled);
    learn(&theirs, &filled);
    let (mut written, early) = (open(&ours, &filled), open(&theirs, &filled));
    written[0].fill(0xEE);
    assert!(early[0][..] == bytes[..], "a view opened before the write");
    assert!(open(&theirs, &filled)[0][..] == bytes[..], "a view opened after the write");
    assert!(open(&ours, &filled)[0][..] == bytes[..], "another view of the same process");
    assert!(written[0].iter().all(|byte| *byte == 0xEE));
}

#[test]
fn later_writes_of_the_sender_are_not_visible_to_readers() {
    let (pool, cache) = (pool(), cache());
    let mut bytes = pattern(1, LEN);
    let filled = pool.fill(&[&bytes], &[READER]).unwrap();
    learn(&cache, &filled);
    let view = open(&cache, &filled);
    bytes.fill(0);
    assert!(view[0][..] == pattern(1, LEN)[..]);
}

#[test]
fn writes_to_an_earlier_message_are_not_visible_in_the_next() {
    let (pool, cache) = (pool(), cache());
    let page = 4096;
    let writes: [fn(&mut [u8], usize); 6] = [
        |_, _| {},
        |view, _| view.fill(0xEE),
        |view, page| view.iter_mut().step_by(2 * page).for_each(|byte| *byte = 0xEE),
        |view, page| view.iter_mut().step_by(40 * page).for_each(|byte| *byte = 0xEE),
        |view, page| view[200 * page..300 * page].fill(0xEE),
        |view, _| *view.last_mut().expect("it is not empty") = 0xEE,
    ];
    for (round, write) in writes.iter().enumerate() {
        let bytes = pattern(round as u8, LEN);
        let filled = pool.fill(&[&bytes], &[READER]).unwrap();
        assert_eq!(filled.segment, 0, "a segment that is free is used again");
        if round == 0 {
            learn(&cache, &filled);
        }
        let mut view = open(&cache, &filled);
        assert!(view[0][..] == bytes[..], "round {round}");
        write(&mut view[0], page);
        drop(view);
        pool.release(filled.segment, filled.generation, READER);
    }
}

#[test]
fn a_view_is_mapped_once_for_many_messages() {
    let (pool, cache) = (pool(), cache());
    let mut addresses = Vec::new();
    for round in 0..4 {
        let filled = pool.fill(&[&pattern(round, LEN)], &[READER]).unwrap();
        if round == 0 {
            learn(&cache, &filled);
        }
        addresses.push(open(&cache, &filled)[0].as_mut_ptr() as usize);
        pool.release(filled.segment, filled.generation, READER);
    }
    assert!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:x?}");
}

#[test]
fn a_segment_grows_with_its_messages_and_is_announced_once() {
    let (pool, cache) = (pool(), cache());
    let mut len = LEN;
    for round in 0..5 {
        let bytes = pattern(round, len);
        let filled = pool.fill(&[&bytes], &[READER]).unwrap();
        assert_eq!(filled.segment, 0);
        if round == 0 {
            learn(&cache, &filled);
        }
        assert!(open(&cache, &filled)[0][..] == bytes[..]);
        pool.release(filled.segment, filled.generation, READER);
        len = len * 3 / 2;
    }
}

#[test]
fn the_owner_is_notified_once_when_the_last_part_is_dropped() {
    let (pool, cache) = (pool(), cache());
    let told = Arc::new(AtomicUsize::new(0));
    let filled = pool.fill(&[b"one", b"two"], &[READER]).unwrap();
    learn(&cache, &filled);
    let counter = Arc::clone(&told);
    let on_drop = Box::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let mut views = cache.open(&filled.parts, on_drop).unwrap();
    drop(views.pop());
    assert_eq!(told.load(Ordering::Relaxed), 0);
    drop(views);
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

#[test]
fn an_open_message_survives_its_owner() {
    let (pool, cache) = (pool(), cache());
    let bytes = pattern(1, LEN);
    let filled = pool.fill(&[&bytes], &[READER]).unwrap();
    learn(&cache, &filled);
    let view = open(&cache, &filled);
    drop(pool);
    cache.owner_died(SENDER);
    assert!(view[0][..] == bytes[..]);
    let error = cache.open(&filled.parts, nothing()).unwrap_err();
    assert!(matches!(error, OpenError::Unknown { segment: 0, .. }), "{error}");
}

#[test]
fn a_replaced_owner_may_reuse_segment_numbers() {
    let cache = cache();
    let (before, after) = (pool(), pool());
    let filled = before.fill(&[&pattern(1, LEN)], &[READER]).unwrap();
    learn(&cache, &filled);
    let view = open(&cache, &filled);
    cache.owner_died(SENDER);
    let filled = after.fill(&[&pattern(2, LEN)], &[READER]).unwrap();
    learn(&cache, &filled);
    drop(view);
    assert!(open(&cache, &filled)[0][..] == pattern(2, LEN)[..]);
}

#[test]
fn a_forgotten_segment_is_unknown_until_it_is_announced_again() {
    let (pool, cache) = (pool(), cache());
    let filled = pool.fill(&[b"bytes"], &[READER]).unwrap();
    learn(&cache, &filled);
    cache.forget(SENDER, filled.segment);
    let error = cache.open(&filled.parts, nothing()).unwrap_err();
    assert!(matches!(error, OpenError::Unknown { .. }), "{error}");
    learn(&cache, &filled);
    assert_eq!(&open(&cache, &filled)[0][..], b"bytes");
}

#[test]
fn invalid_parts_from_a_peer_are_refused() {
    let (pool, cache) = (pool(), cache());
    let filled = pool.fill(&[&pattern(1, LEN), b"second"], &[READER]).unwrap();
    learn(&cache, &filled);
    let (honest, second) = (filled.parts[0], filled.parts[1]);
    let lies: [(&str, Vec<Part>); 9] = [
        ("no parts", vec![]),
        ("too long", vec![Part { len: 1 << 40, ..honest }]),
        ("too far out", vec![Part { offset: 1 << 40, ..honest }]),
        ("beyond every address", vec![Part { offset: u64::MAX, len: 2, ..honest }]),
        ("at the end of the address space", vec![Part { offset: u64::MAX - 8, len: 8, ..honest }]),
        ("overlapping", vec![honest, Part { offset: second.offset - 64, ..second }]),
        ("overlapping, out of order", vec![Part { offset: second.offset - 64, ..second }, honest]),
        ("behind a body", vec![Part::inline(0, 1)]),
        ("of two generations", vec![honest, Part { generation: 9, ..second }]),
    ];
    for (lie, parts) in lies {
        let never = Box::new(|| panic!("a message that was not opened is not dropped"));
        let error = cache.open(&parts, never).expect_err(lie);
        assert!(matches!(error, OpenError::Refused { .. }), "{lie}: {error}");
    }
    let swapped = cache.open(&[second, honest], nothing()).unwrap();
    assert_eq!(&swapped[0][..], b"second", "parts may stand in any order");
}

#[test]
fn bytes_count_as_received_until_their_page_is_written() {
    let (pool, cache) = (pool(), cache());
    let filled = pool.fill(&[&pattern(1, LEN), b"second"], &[READER]).unwrap();
    learn(&cache, &filled);
    let mut views = open(&cache, &filled);
    let (whole, second) = (filled.parts[0], filled.parts[1]);
    let part = |bytes: &[u8]| cache.received(bytes).map(|received| received.part);
    assert_eq!(part(&views[0]), Some(whole));
    assert_eq!(part(&views[1]), Some(second));
    let slice = Part { offset: 4096, len: 100, ..whole };
    assert_eq!(part(&views[0][4096..4196]), Some(slice));
    let message_len = usize::try_from(second.offset + second.len).unwrap();
    assert_eq!(cache.received(&views[0]).map(|received| received.message_len), Some(message_len));

    views[0][LEN / 2] ^= 1;
    assert_eq!(part(&views[0]), None);
    assert_eq!(part(&views[0][4096..4196]), Some(slice), "no page of these was written");
    assert_eq!(part(&pattern(1, 64)), None, "these came from nowhere");
}

#[test]
fn bytes_of_a_dropped_message_are_not_found() {
    let (pool, cache) = (pool(), cache());
    let mut last = None;
    for seed in 0..8 {
        let filled = pool.fill(&[&pattern(seed, LEN)], &[READER]).unwrap();
        learn(&cache, &filled);
        let views = open(&cache, &filled);
        let received = cache.received(&views[0]).expect("nobody has written");
        assert_eq!(received.part, filled.parts[0], "of this message, not of one before");
        last = Some((filled, views));
    }
    let (filled, views) = last.expect("there were messages");
    drop(views);
    pool.release(filled.segment, filled.generation, READER);
    let again = pool.fill(&[&pattern(9, LEN)], &[READER]).unwrap();
    assert_eq!(cache.received(&pattern(9, LEN)), None);
    let views = open(&cache, &again);
    assert_eq!(cache.received(&views[0]).map(|received| received.part), Some(again.parts[0]));
}

#[test]
fn a_descriptor_that_could_be_truncated_is_refused() {
    let cache = cache();
    let pipe: OwnedFd = std::io::pipe().unwrap().0.into();
    let file: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    for fd in [pipe, file] {
        let error = cache.learn(SENDER, 0, fd).unwrap_err();
        assert!(matches!(error, OpenError::Refused { .. }), "{error}");
    }
}

#[test]
fn the_descriptors_kept_for_a_peer_are_bounded() {
    let cache = SegmentCache::new(CacheLimits { segments_max: 2, ..CacheLimits::default() });
    let filled = pool().fill(&[b"bytes"], &[READER]).unwrap();
    let announce = |segment| cache.learn(SENDER, segment, filled.fd.try_clone().unwrap());
    assert!(announce(0).is_ok() && announce(1).is_ok() && announce(1).is_ok());
    let error = announce(2).unwrap_err();
    assert!(matches!(error, OpenError::TooMany { max: 2, .. }), "{error}");
}
