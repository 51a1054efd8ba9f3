//! Arbitrary bytes as a region: it is rejected, or all operations on the region work.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::bounded;
use mesh_wire::region::{Region, RegionError, Selector};

fn use_region(region: &Region) -> Result<(), RegionError> {
    for index in [0, region.len() / 3, region.len() - 1] {
        let rank = region.rank_at(index).expect("the index is below the length");
        assert_eq!(region.index_of(rank), Some(index));
    }
    let _ = (region.index_of(0), region.index_of(u32::MAX), region.strides());
    let mut bytes = BytesMut::new();
    region.encode(&mut bytes);
    let again = Region::decode(&bytes)?;
    let mut bytes_again = BytesMut::new();
    again.encode(&mut bytes_again);
    assert_eq!(bytes, bytes_again);
    let back = Selector::Range { start: None, stop: None, step: -2 };
    let flat = region.flatten("flat")?.select("flat", &back)?;
    assert_eq!(flat.rank_at(0), region.rank_at(region.len() - 1));
    let cut = flat.split("flat", &[("outer", None), ("inner", Some(1))])?;
    assert_eq!(cut.index_of(flat.rank_at(flat.len() - 1).unwrap_or(0)), Some(flat.len() - 1));
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    // A listed displacement is at least one byte of input; each of a few copies takes eight bytes.
    bounded((64 << 10) + 256 * bytes.len(), || {
        if let Ok(region) = Region::decode(bytes) {
            match use_region(&region) {
                Ok(()) | Err(RegionError::TooDeep(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
});
