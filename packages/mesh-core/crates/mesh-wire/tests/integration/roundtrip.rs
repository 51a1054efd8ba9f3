//! Frames are decoded regardless of how the stream is split, and no input causes a panic.

use crate::seeded;
use bytes::BytesMut;
use mesh_wire::codec::Decoder;
use mesh_wire::frame::{Frame, HEAD_LEN, Head, Kind, PART_LEN, Part};
use mesh_wire::id::{Address, PortId, ProcId};
use mesh_wire::region::{Region, Selector};
use proptest::prelude::*;

fn address() -> impl Strategy<Value = Address> {
    (any::<u64>(), any::<u64>())
        .prop_map(|(proc, port)| Address { proc: ProcId::from_u64(proc), port: PortId(port) })
}

fn kind() -> impl Strategy<Value = Kind> {
    any::<u8>().prop_filter_map("a number without a kind", Kind::from_u8)
}

fn part() -> impl Strategy<Value = Part> {
    let owner = any::<u64>().prop_map(ProcId::from_u64);
    (owner, any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(owner, segment, generation, offset, len)| Part {
            owner,
            segment,
            generation,
            offset,
            len,
        },
    )
}

prop_compose! {
    fn frame()(
        kind in kind(),
        (to, from) in (address(), address()),
        (flags, hops, rank) in any::<(u8, u8, u32)>(),
        (seq, ack) in any::<(u64, u64)>(),
        meta in prop::collection::vec(any::<u8>(), 0..40),
        parts in prop::collection::vec(part(), 0..4),
        body in prop::collection::vec(any::<u8>(), 0..200),
    ) -> (Frame, Vec<Part>, usize) {
        let (meta_len, part_count) = (meta.len() as u16, parts.len() as u8);
        let mut head = Head::new(kind, to, from);
        head = Head { flags, hops, meta_len, part_count, seq, ack, rank, ..head };
        let mut tail = meta;
        tail.extend(parts.iter().flat_map(Part::encode));
        tail.extend_from_slice(&body);
        (Frame { head, tail: tail.into() }, parts, body.len())
    }
}

fn written(frame: &Frame) -> Vec<u8> {
    [frame.head.encode(frame.tail.len()).as_slice(), &frame.tail].concat()
}

/// Performs every operation of a receiver on a frame.
fn use_frame(frame: &Frame) {
    let len = frame.meta().len() + frame.parts().count() * PART_LEN + frame.body().len();
    assert_eq!(len, frame.tail.len());
}

/// Performs every operation of a receiver on a region.
fn use_region(region: &Region) {
    assert_eq!(region.ranks().len(), region.len());
    for index in [0, region.len() / 2, region.len() - 1] {
        let rank = region.rank_at(index).expect("the index is below the length");
        assert_eq!(region.index_of(rank), Some(index));
        let same = region.coordinates(index).expect("the index is below the length");
        assert_eq!(same.len(), region.labels().len());
    }
    let _ = (region.index_of(0), region.index_of(u32::MAX), region.to_string(), region.strides());
    let step = Selector::Range { start: Some(-1), stop: None, step: -2 };
    let flat = region.flatten("flat").and_then(|flat| flat.select("flat", &step));
    let flat = flat.expect("any region can be flattened and sliced");
    let cut = flat.split("flat", &[("one", Some(1)), ("rest", None)]);
    assert_eq!(cut.expect("1 divides any size").rank_at(0), region.rank_at(region.len() - 1));
    let mut bytes = BytesMut::new();
    region.encode(&mut bytes);
    assert_eq!(Region::decode(&bytes).as_ref(), Ok(region));
}

/// Random bytes with an almost valid head, so that they pass the first checks.
fn nearly_a_frame() -> impl Strategy<Value = Vec<u8>> {
    let random = prop::collection::vec(any::<u8>(), 0..400);
    (random, prop::bool::weighted(0.8), kind(), 0_u32..300).prop_map(
        |(mut bytes, is_near, kind, len)| {
            if is_near && bytes.len() >= 8 {
                bytes[..4].copy_from_slice(&[0xa7, 1, kind as u8, 0]);
                bytes[4..8].copy_from_slice(&len.to_le_bytes());
            }
            if is_near && bytes.len() >= HEAD_LEN {
                bytes[61] = 0;
                bytes[62] %= 4;
            }
            bytes
        },
    )
}

/// An encoded region of one to three layers, with a few bytes changed.
fn nearly_a_region() -> impl Strategy<Value = Vec<u8>> {
    let sizes = prop::collection::vec(1_usize..9, 2..5);
    let changes = prop::collection::vec((any::<prop::sample::Index>(), 0_u8..20), 0..4);
    (sizes, 0_usize..4, changes).prop_map(|(sizes, turns, changes)| {
        let labels = &["a", "b", "c", "d"][..sizes.len()];
        let mut region = Region::row_major(labels, &sizes).expect("sizes fit");
        for _ in 0..turns {
            let last = region.labels().last().expect("there is a dimension").to_owned();
            let part = match region.size(&last).expect("there is a dimension") {
                0..=3 => Selector::Range { start: Some(-1), stop: None, step: -2 },
                4..=6 => Selector::List(vec![3, 0, 1]),
                _ => Selector::Range { start: Some(1), stop: None, step: 3 },
            };
            let flat = region.select(&last, &part).and_then(|part| part.flatten("f"));
            let flat = flat.expect("any region can be flattened");
            let inner = if flat.len().is_multiple_of(3) { 3 } else { 1 };
            region = flat.split("f", &[("g", None), ("h", Some(inner))]).expect("it divides");
        }
        let mut bytes = BytesMut::new();
        region.encode(&mut bytes);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.to_vec()
    })
}

proptest! {
    #![proptest_config(seeded::config(1000))]

    #[test]
    fn frames_are_decoded_from_a_stream_split_anywhere(
        frames in prop::collection::vec(frame(), 1..5),
        cut in 1_usize..150,
    ) {
        let stream: Vec<u8> = frames.iter().flat_map(|(frame, ..)| written(frame)).collect();
        let mut decoder = Decoder::default();
        let mut arrived = Vec::new();
        for piece in stream.chunks(cut) {
            decoder.feed(piece, |frame| arrived.push(frame)).expect("the stream is well formed");
        }
        prop_assert_eq!(arrived.len(), frames.len());
        for (arrived, (sent, parts, body_len)) in arrived.iter().zip(&frames) {
            prop_assert_eq!(arrived, sent);
            prop_assert_eq!(&arrived.parts().collect::<Vec<_>>(), parts);
            prop_assert_eq!(arrived.body().len(), *body_len);
        }
    }

    #[test]
    fn a_frame_longer_than_the_read_ahead_is_decoded_from_any_split(
        len in 60_000_usize..200_000,
        cut in 1_usize..100_000,
    ) {
        let tail: Vec<u8> = (0..len).map(|at| at as u8).collect();
        let head = Head::new(Kind::Call, Address::default(), Address::default());
        let sent = Frame { head, tail: tail.into() };
        let stream = [written(&sent), written(&sent)].concat();
        let mut decoder = Decoder::default();
        let mut arrived = Vec::new();
        for piece in stream.chunks(cut) {
            decoder.feed(piece, |frame| arrived.push(frame)).expect("the stream is well formed");
        }
        prop_assert_eq!(arrived, vec![sent.clone(), sent]);
    }

    #[test]
    fn the_codec_never_panics_on_arbitrary_bytes(bytes in nearly_a_frame()) {
        // Whether or not the bytes are refused, the frames decoded before are valid.
        let _ = Decoder::default().feed(&bytes, |frame| use_frame(&frame));
    }

    #[test]
    fn a_region_decoded_from_arbitrary_bytes_never_panics(
        near in nearly_a_region(),
        random in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        for bytes in [near, random] {
            if let Ok(region) = Region::decode(&bytes) {
                use_region(&region);
            }
        }
    }
}

#[test]
fn a_truncated_or_extended_region_is_refused() {
    let region = Region::row_major(&["hosts", "gpus"], &[300, 8]).expect("sizes fit");
    let region = region.select("gpus", &Selector::List(vec![0, 3, 4])).expect("in range");
    let mut bytes = BytesMut::new();
    region.encode(&mut bytes);
    for len in 0..bytes.len() {
        assert!(Region::decode(&bytes[..len]).is_err(), "{len} bytes are not enough");
    }
    bytes.extend_from_slice(&[0]);
    assert!(Region::decode(&bytes).is_err(), "nothing may follow");
}
