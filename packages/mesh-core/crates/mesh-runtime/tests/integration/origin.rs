//! Origins of messages, compared with the golden bytes in `docs/protocol/call.md`.

use mesh_runtime::origin::{Meta, with_origin};
use mesh_wire::frame::Kind;
use mesh_wire::id::PortId;

const DOCUMENT: &str = include_str!("../../../../../../docs/protocol/call.md");

/// Returns the bytes of a golden block of the document.
fn golden(name: &str) -> Vec<u8> {
    let fence = format!("```golden {name}\n");
    let start = DOCUMENT.find(&fence).expect("the document has the block") + fence.len();
    let block = DOCUMENT[start..].split("```").next().expect("it ends");
    let bytes = block.split_whitespace().map(|byte| u8::from_str_radix(byte, 16));
    bytes.collect::<Result<_, _>>().expect("bytes in hexadecimal")
}

#[test]
fn a_call_from_an_actor_has_the_documented_bytes() {
    let bytes = golden("sender");
    let meta = Meta::read(Kind::Call, &bytes);
    assert_eq!((meta.sender(), meta.span(), meta.trace()), (PortId(0x111), 0, None));
    assert_eq!((meta.endpoint(), meta.rest), (&b"step"[..], &b"\0step\0gpus=2"[..]));
    assert_eq!(with_origin(meta.origin, meta.rest), Some(bytes.clone()));
}

#[test]
fn a_call_in_a_span_has_the_documented_bytes() {
    let bytes = golden("span");
    let meta = Meta::read(Kind::Call, &bytes);
    assert_eq!((meta.sender(), meta.span()), (PortId::NONE, 0x00f0_67aa_0ba9_02b7));
    let trace = meta.trace().expect("it says so");
    assert_eq!((trace.len(), trace[0], trace[24]), (25, 0x4b, 1));
    assert_eq!(with_origin(meta.origin, meta.rest), Some(bytes.clone()));
}

#[test]
fn a_meta_without_an_origin_is_left_as_it_is() {
    for bytes in [&b""[..], b"E", b"\0step\0", b"stop_actor"] {
        let meta = Meta::read(Kind::Call, bytes);
        assert_eq!((meta.origin, meta.rest), (&[][..], bytes));
    }
    let window = golden("sender");
    assert_eq!(Meta::read(Kind::Spawn, &window).rest, window, "a window may look like an origin");
}

#[test]
fn a_truncated_origin_is_ignored() {
    let bytes = golden("span");
    for len in 0..34 {
        let meta = Meta::read(Kind::Call, &bytes[..len]);
        assert_eq!((meta.origin, meta.rest.len()), (&[][..], len));
    }
    assert_eq!(with_origin(&[0; 9], b"E"), None);
}
