//! A stream of arbitrary bytes: it is rejected, or decodes to the same frames wherever it is split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded};
use mesh_wire::codec::Decoder;
use mesh_wire::frame::{Frame, PART_LEN};

/// Three decoders, their read-ahead buffers, and for each the memory of a tail whose length a head
/// declares. The kernel allocates the pages of a longer tail when they are written.
const MEMORY_MAX: usize = (256 << 10) + (3 << 20);
const CUTS: usize = 4;

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
    let mut input = Input::new(bytes);
    let cuts: [u8; CUTS] = std::array::from_fn(|_| input.u8());
    let stream = input.rest();
    bounded(MEMORY_MAX + 16 * stream.len(), || {
        let mut pieces = Vec::with_capacity(CUTS + 1);
        let mut rest = stream;
        for cut in cuts {
            let (piece, behind) = rest.split_at(rest.len().min(usize::from(cut)));
            pieces.push(piece);
            rest = behind;
        }
        pieces.push(rest);
        let whole = frames(&[stream]);
        assert_eq!(whole, frames(&pieces), "where a stream is cut makes no difference");
        for frame in whole.0 {
            check(frame);
        }
    });
});

fn check(frame: Frame) {
    let parts: Vec<_> = frame.parts().collect();
    let len = frame.meta().len() + parts.len() * PART_LEN + frame.body().len();
    assert_eq!(len, frame.tail.len());
    assert!(frame.segment_refs().into_iter().count() <= parts.len());
    let written = [frame.head.encode(len).as_slice(), &frame.tail].concat();
    assert_eq!(frames(&[&written]).0, [frame]);
}
