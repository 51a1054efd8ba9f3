//! Arbitrary bytes as the manifest of a workspace: no name leads out of the directory.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::bounded;
use mesh_snapshot::ChunkId;

fuzz_target!(|rest: &[u8]| {
    // The checksum is correct, so that the bytes before it are decoded.
    let body = [b"mesh-workspace 1\n", rest].concat();
    let manifest = [&body[..], &ChunkId::of(&body).0[..]].concat();
    // An entry takes at least 85 bytes, and a node of the map holds 11 entries.
    bounded((16 << 10) + 32 * manifest.len(), || {
        for name in mesh_view::manifest_names(&manifest).unwrap_or_default() {
            let path = std::str::from_utf8(&name).map(Path::new);
            let is_plain =
                |path: &Path| path.components().all(|part| matches!(part, Component::Normal(_)));
            assert!(!name.is_empty() && path.map_or(true, is_plain));
        }
        assert!(mesh_view::manifest_names(rest).is_none());
    });
});
