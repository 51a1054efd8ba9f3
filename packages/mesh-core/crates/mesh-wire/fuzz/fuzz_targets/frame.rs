//! A stream of any bytes, in two pieces: frames come out whole, or the stream is refused.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mesh_wire::codec::{missing, take_frame};
use mesh_wire::frame::{Frame, PART_LEN};

fn frames(pieces: &[&[u8]]) -> (Vec<Frame>, bool) {
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match take_frame(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
        assert_ne!(missing(&buffer), Ok(0), "a whole frame was left in the buffer");
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
