//! The golden bytes in `docs/protocol/` are the bytes on the wire.

use bytes::{Bytes, BytesMut};
use mesh_wire::codec::{Decoder, Malformed};
use mesh_wire::frame::{Frame, Head, Kind, Part, SegmentRef};
use mesh_wire::id::{Address, PortId, ProcId};
use mesh_wire::region::{Region, Selector};
use std::path::Path;

fn read(document: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../docs/protocol");
    std::fs::read_to_string(folder.join(document)).expect("the document is there")
}

/// The golden blocks of a protocol document, by name.
fn golden(document: &str) -> Vec<(String, Vec<u8>)> {
    let mut blocks: Vec<(String, Vec<u8>)> = Vec::new();
    let mut is_inside = false;
    for line in read(document).lines() {
        if let Some(name) = line.strip_prefix("```golden ") {
            blocks.push((name.to_owned(), Vec::new()));
            is_inside = true;
        } else if line.starts_with("```") {
            is_inside = false;
        } else if is_inside {
            let byte = |hex| u8::from_str_radix(hex, 16).expect("golden bytes are hexadecimal");
            let (_, bytes) = blocks.last_mut().expect("a block has begun");
            bytes.extend(line.split_whitespace().map(byte));
        }
    }
    blocks
}

fn bytes_of(document: &str, name: &str) -> Vec<u8> {
    let found = golden(document).into_iter().find(|block| block.0 == name);
    found.unwrap_or_else(|| panic!("{document} has no golden block {name:?}")).1
}

fn address(host: u32, slot: u32, port: u64) -> Address {
    Address { proc: ProcId::new(host, slot), port: PortId(port) }
}

fn check_frame(name: &str, frame: &Frame) {
    let bytes = bytes_of("frame.md", name);
    let mut written = frame.head.encode(frame.tail.len()).to_vec();
    written.extend_from_slice(&frame.tail);
    assert_eq!(written, bytes, "what is written for {name}");
    let mut read = Vec::new();
    Decoder::default().feed(&bytes, |frame| read.push(frame)).expect("the bytes are a frame");
    assert_eq!(read, std::slice::from_ref(frame), "what is read for {name}");
}

#[test]
fn a_call_is_written_as_documented() {
    let owner = ProcId::new(0, 0);
    let part = Part { owner, segment: 9, generation: 2, offset: 4096, len: 64 << 20 };
    let tail = [b"met".as_slice(), &part.encode(), b"body"].concat();
    let head = Head {
        flags: 5,
        hops: 1,
        meta_len: 3,
        part_count: 1,
        seq: 42,
        ack: 41,
        rank: 7,
        ..Head::new(Kind::Call, address(1, 3, PortId::FIRST_FREE), address(0, 0, 0x111))
    };
    let frame = Frame { head, tail: tail.into() };
    check_frame("call", &frame);
    assert_eq!(frame.meta(), b"met");
    assert_eq!(frame.parts().collect::<Vec<_>>(), [part]);
    assert_eq!(frame.body(), Bytes::from_static(b"body"));
}

#[test]
fn a_reply_with_returned_parts_is_written_as_documented() {
    let owner = ProcId::new(0, 3);
    let back = Part { owner, segment: 9, generation: 2, offset: 4096, len: 64 << 20 };
    let behind = Part::inline(4, 2);
    let tail = [back.encode().as_slice(), &behind.encode(), b"body", b"hi"].concat();
    let head = Head {
        hops: 1,
        part_count: 2,
        seq: 43,
        ack: 42,
        ..Head::new(Kind::Reply, address(0, 3, 0x111), address(0, 5, PortId::FIRST_FREE))
    };
    let frame = Frame { head, tail: tail.into() };
    check_frame("reply", &frame);
    assert_eq!(frame.parts().collect::<Vec<_>>(), [back, behind]);
    assert_eq!(frame.segment_refs(), [SegmentRef { owner, segment: 9, generation: 2 }]);
}

#[test]
fn an_acknowledgement_is_written_as_documented() {
    let mut head = Head::new(Kind::Ack, Address::default(), address(0, 2, 0));
    head.ack = 0x1122_3344_5566_7788;
    check_frame("ack", &Frame::bare(head));
}

#[test]
fn documented_refusals_have_the_documented_reason() {
    let refused = |name| {
        let bytes = bytes_of("frame.md", name);
        Decoder::default().feed(&bytes, |_| ()).expect_err("it must be refused")
    };
    assert_eq!(refused("refused magic"), Malformed::Magic(b'H'));
    assert_eq!(refused("refused version"), Malformed::Version(2));
    assert_eq!(refused("refused kind"), Malformed::Kind(9));
    assert_eq!(refused("refused length"), Malformed::TooLong((1 << 30) + 1));
    assert_eq!(refused("refused overlap"), Malformed::Overlap);
}

#[test]
fn the_document_lists_all_kinds() {
    let text = read("frame.md");
    let section = text.split("## ").find(|section| section.starts_with("Kinds"));
    let mut documented = Vec::new();
    for line in section.expect("the document has a section on kinds").lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        for pair in cells.windows(2) {
            if let Ok(number) = pair[0].parse::<u8>() {
                documented.push((number, pair[1].to_owned()));
            }
        }
    }
    documented.sort_unstable();
    let kinds = (0..=u8::MAX).filter_map(Kind::from_u8);
    let coded: Vec<_> =
        kinds.map(|kind| (kind as u8, format!("{kind:?}").to_lowercase())).collect();
    assert_eq!(documented, coded);
}

fn check_region(name: &str, region: &Region, ranks: &[u32]) {
    let bytes = bytes_of("region.md", name);
    let mut written = BytesMut::new();
    region.encode(&mut written);
    assert_eq!(written.to_vec(), bytes, "what is written for {name}");
    let read = Region::decode(&bytes).expect("golden bytes are a region");
    assert_eq!(&read, region);
    assert_eq!(read.ranks().collect::<Vec<_>>(), ranks, "the ranks of {name}");
}

#[test]
fn regions_are_written_as_documented() {
    let whole = Region::row_major(&["hosts", "gpus"], &[2, 4]).expect("sizes fit");
    check_region("whole", &whole, &[0, 1, 2, 3, 4, 5, 6, 7]);

    let back = Selector::Range { start: None, stop: None, step: -2 };
    let strided = whole.select("gpus", &back).expect("in range");
    check_region("strided", &strided, &[3, 1, 7, 5]);

    let host = whole.select("hosts", &Selector::Index(1)).expect("in range");
    let listed = host.select("gpus", &Selector::List(vec![3, 0, 1])).expect("in range");
    check_region("listed", &listed, &[7, 4, 5]);

    let three = Selector::Range { start: Some(0), stop: Some(3), step: 1 };
    let flat = whole.select("gpus", &three).and_then(|part| part.flatten("all"));
    let odd = Selector::Range { start: Some(1), stop: None, step: 2 };
    let layered = flat.and_then(|flat| flat.select("all", &odd)).expect("in range");
    check_region("layered", &layered, &[1, 4, 6]);

    check_region("member", &whole.member(5).expect("in range"), &[5]);
}
