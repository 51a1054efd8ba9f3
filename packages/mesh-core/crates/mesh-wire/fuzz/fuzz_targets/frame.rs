//! A stream of any bytes, in two pieces: frames come out whole, or the stream is refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_wire::codec::Decoder;
use mesh_wire::frame::{Frame, PART_LEN};

fn frames(pieces: &[&[u8]]) -> (Vec<Frame>, bool) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for piece in pieces {
        if decoder.feed(piece, |frame| frames.push(frame)).is_err() {
            return (frames, true);
        }
    }
    (frames, false)
}

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.len() / 3);
    let whole = frames(&[bytes]);
    assert_eq!(whole, frames(&[first, second]), "where a stream is cut makes no difference");
    for frame in whole.0 {
        let parts: Vec<_> = frame.parts().collect();
        let len = frame.meta().len() + parts.len() * PART_LEN + frame.body().len();
        assert_eq!(len, frame.tail.len());
        let written = [frame.head.encode(len).as_slice(), &frame.tail].concat();
        assert_eq!(frames(&[&written]).0, [frame]);
    }
});
