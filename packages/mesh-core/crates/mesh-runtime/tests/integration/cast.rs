//! Casts: the tree, the aggregation of replies, and the encoding of aggregated replies.

use bytes::{BufMut, Bytes, BytesMut};
use mesh_runtime::cast::bundle::{ENTRY_HEAD_LEN, Entry, Malformed, Packer, unpack};
use mesh_runtime::cast::{Merge, Progress, Tree};
use mesh_wire::frame::PART_LEN;
use proptest::collection::vec;
use proptest::prelude::*;

fn entry(rank: u32, is_fault: bool, tail: &'static [u8]) -> Entry {
    let tail = Bytes::from_static(tail);
    Entry { rank, is_fault, flags: u8::from(is_fault), meta_len: 0, part_count: 0, tail }
}

proptest! {
    #[test]
    fn every_host_is_reached_once(count in 1usize..300, fanout in 1usize..20) {
        let tree = Tree::new(count, fanout);
        let mut reached: Vec<usize> = tree.subtree(0).collect();
        prop_assert_eq!(reached.first(), Some(&0));
        reached.sort_unstable();
        prop_assert_eq!(reached, (0..count).collect::<Vec<_>>());
        for place in 0..count {
            prop_assert!(tree.children(place).len() <= fanout);
            for child in tree.children(place) {
                prop_assert_eq!(tree.parent(child), Some(place));
                prop_assert!(tree.is_under(child, place));
            }
            prop_assert!(tree.subtree(place).all(|below| tree.is_under(below, place)));
        }
    }

    #[test]
    fn every_live_host_is_reached_once_despite_dead_hosts(
        dead in vec(any::<bool>(), 1..200),
        fanout in 1usize..6,
    ) {
        let tree = Tree::new(dead.len(), fanout);
        let mut reached = vec![0];
        let mut unvisited = vec![0];
        while let Some(place) = unvisited.pop() {
            let below = tree.live_children(place, |at| dead[at]);
            reached.extend(&below);
            unvisited.extend(below);
        }
        reached.sort_unstable();
        let live: Vec<usize> = (0..dead.len()).filter(|at| *at == 0 || !dead[*at]).collect();
        prop_assert_eq!(reached, live);
    }

    #[test]
    fn a_merge_completes_once_in_any_order(
        order in Just((100u32..300).collect::<Vec<_>>()).prop_shuffle(),
        extra in vec(0u32..400, 0..100),
    ) {
        let mut merge = Merge::new(100..300);
        let mut completions = 0;
        for (at, rank) in order.iter().enumerate() {
            for stray in extra.iter().filter(|stray| *stray % 200 == at as u32) {
                completions += u32::from(merge.add(*stray, ()) == Progress::Complete);
            }
            completions += u32::from(merge.add(*rank, ()) == Progress::Complete);
        }
        prop_assert_eq!(completions, 1);
        prop_assert!(merge.is_complete());
        let mut ranks: Vec<u32> = merge.take().into_iter().map(|(rank, ())| rank).collect();
        ranks.sort_unstable();
        prop_assert_eq!(ranks, (100..300).collect::<Vec<_>>());
    }

    #[test]
    fn packed_entries_are_unpacked_unchanged(
        tails in vec((any::<bool>(), vec(any::<u8>(), 0..80)), 0..40),
        len_max in 1usize..400,
    ) {
        let mut entries: Vec<Entry> = (0u32..).zip(tails).map(|(rank, (is_fault, tail))| Entry {
            rank,
            is_fault,
            flags: rank as u8,
            meta_len: tail.len() as u16 % 5,
            part_count: u8::from(tail.len() >= PART_LEN + 6),
            tail: Bytes::from(tail),
        }).collect();
        entries.retain(|entry| {
            let parts_len = usize::from(entry.part_count) * PART_LEN;
            usize::from(entry.meta_len) + parts_len <= entry.tail.len()
        });
        let mut packer = Packer::new(len_max);
        for entry in &entries {
            packer.push(entry);
        }
        let mut unpacked = Vec::new();
        for body in packer.finish() {
            let bundle = unpack(&body, entries.len()).expect("it was packed here");
            prop_assert!(body.len() <= len_max || bundle.len() == 1);
            unpacked.extend(bundle);
        }
        prop_assert_eq!(unpacked, entries);
    }

    #[test]
    fn unpacking_arbitrary_bytes_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        let _ = unpack(&Bytes::from(bytes), 8);
    }
}

#[test]
fn a_bundle_has_the_documented_bytes() {
    let mut packer = Packer::new(1024);
    packer.push(&Entry { meta_len: 1, ..entry(7, false, b"mb") });
    packer.push(&Entry { flags: 2, ..entry(0x0102_0304, true, b"") });
    let golden: &[u8] = &[
        7, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 17, 0, 0, 0, 0, b'm', b'b', //
        4, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0, 18, 2, 0, 0, 0,
    ];
    assert_eq!(packer.finish(), [Bytes::from_static(golden)]);
}

#[test]
fn a_broken_bundle_is_refused_with_its_cause() {
    let mut packer = Packer::new(1024);
    packer.push(&entry(1, false, b"0123456789"));
    let good = packer.finish().remove(0);
    let with = |at: usize, byte: u8| {
        let mut bytes = BytesMut::from(&good[..]);
        bytes[at] = byte;
        unpack(&bytes.freeze(), 8).expect_err("a byte was broken")
    };
    assert_eq!(with(4, 11), Malformed::Truncated(0));
    assert_eq!(with(4, 9), Malformed::Truncated(ENTRY_HEAD_LEN + 9));
    assert_eq!(with(8, 11), Malformed::Overlap);
    assert_eq!(with(10, 1), Malformed::Overlap);
    assert_eq!(with(11, 16), Malformed::Kind(16));
    assert_eq!(with(15, 1), Malformed::Reserved);
    let mut twice = BytesMut::new();
    twice.put_slice(&good);
    twice.put_slice(&good);
    assert_eq!(unpack(&twice.freeze(), 1), Err(Malformed::TooMany(1)));
}

#[test]
fn a_merge_counts_each_rank_once_and_does_not_wait_for_skipped_ranks() {
    let mut merge = Merge::new([0, 1, 2, 3]);
    assert_eq!(merge.add(1, 'b'), Progress::Waiting);
    assert_eq!(merge.add(1, 'x'), Progress::Ignored);
    assert_eq!(merge.add(9, 'x'), Progress::Ignored);
    assert_eq!(merge.take(), [(1, 'b')]);
    assert_eq!(merge.add(0, 'a'), Progress::Waiting);
    assert_eq!(merge.skip_ranks([2, 3]), Progress::Complete);
    assert_eq!(merge.skip_ranks([2, 3]), Progress::Ignored);
    assert_eq!(merge.take(), [(0, 'a')]);
}

#[test]
fn an_empty_merge_is_complete() {
    assert!(Merge::<()>::new([]).is_complete());
}
