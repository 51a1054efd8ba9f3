//! Blocks of the arena are disjoint, initially zero, and reused.
#![expect(unsafe_code, reason = "looks at blocks by address")]

use mesh_data::Span;
use mesh_data::arena::Arena;
use std::sync::Arc;

fn bytes(span: Span) -> &'static mut [u8] {
    // SAFETY: the tests hold the block during the use, and use one slice of it at a time.
    unsafe { span.bytes_mut() }
}

#[test]
fn blocks_do_not_overlap_and_are_initially_zero() {
    let arena = Arc::new(Arena::default());
    let sizes = [1, 4096, 5000, 1 << 20, 1, 12345];
    let blocks: Vec<_> = sizes.map(|size| arena.allocate(size).expect("there is memory")).into();
    for (number, block) in blocks.iter().enumerate() {
        assert!(bytes(block.span).iter().all(|byte| *byte == 0));
        bytes(block.span).fill(u8::try_from(number).expect("few") + 1);
    }
    for (number, block) in blocks.iter().enumerate() {
        let expected = u8::try_from(number).expect("few") + 1;
        assert!(bytes(block.span).iter().all(|byte| *byte == expected));
        assert_eq!(arena.locate(block.span), Some((block.segment, block.offset as u64 as usize)));
    }
}

#[test]
fn freed_blocks_are_merged_and_zeroed_for_reuse() {
    let arena = Arc::new(Arena::default());
    let blocks: Vec<_> = (0..4).map(|_| arena.allocate(4096).expect("there is memory")).collect();
    let first = blocks[0].span.start;
    for order in [[1_usize, 3, 0, 2], [0, 1, 2, 3], [3, 2, 1, 0]] {
        let mut held: Vec<_> =
            (0..4).map(|_| Some(arena.allocate(4096).expect("there is memory"))).collect();
        for block in held.iter().flatten() {
            bytes(block.span).fill(9);
        }
        let start = held[0].as_ref().expect("held").span.start;
        for at in order {
            held[at] = None;
        }
        let whole = arena.allocate(4 * 4096).expect("there is memory");
        assert_eq!(whole.span.start, start, "neighbours are one range again");
        assert!(bytes(whole.span).iter().all(|byte| *byte == 0));
    }
    drop(blocks);
    assert_eq!(arena.allocate(1 << 20).expect("there is memory").span.start, first);
}

#[test]
fn a_span_that_is_not_within_one_segment_is_not_located() {
    let arena = Arc::new(Arena::default());
    let block = arena.allocate(100).expect("there is memory");
    let map = arena.segment(block.segment).expect("it is there");
    assert!(arena.locate(map.span()).is_some());
    assert!(arena.locate(Span { start: map.span().start, len: map.span().len + 1 }).is_none());
    assert!(arena.locate(Span { start: 4096, len: 1 }).is_none());
    assert!(arena.locate(Span { start: usize::MAX, len: 8 }).is_none());
    assert!(arena.segment(77).is_none());
}
