//! Arbitrary bytes as a recipe: it is rejected, or joined only from the chunks that it lists.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded};
use mesh_snapshot::{ChunkId, DecodeError, Joined, Recipe};
use std::collections::HashMap;

/// Maximum number of levels of lists that a reader accepts.
const LEVEL_MAX: u8 = 4;

/// Offset of the level in a recipe.
const LEVEL_AT: usize = 9;

/// The chunks that a host has, by id.
type Chunks = HashMap<ChunkId, Vec<u8>>;

/// Writes the recipe of bytes that are split at each multiple of a length.
fn write(level: u8, below: &[u8], cut_len: usize, chunks: &mut Chunks) -> Vec<u8> {
    let mut recipe = [&b"meshlist\x01"[..], &[level]].concat();
    for piece in below.chunks(cut_len) {
        let chunk = ChunkId::of(piece);
        recipe.extend(chunk.0);
        match piece.len() {
            len @ ..0x80 => recipe.push(len as u8),
            len => recipe.extend([len as u8 | 0x80, (len >> 7) as u8]),
        }
        chunks.insert(chunk, piece.to_vec());
    }
    recipe
}

/// Follows a recipe through all levels; returns the stream that it describes.
fn follow(recipe: &[u8], chunks: &Chunks) -> Result<Vec<u8>, DecodeError> {
    let mut recipe = Recipe::parse(recipe)?;
    loop {
        let level = recipe.level();
        recipe = match recipe.join(|chunk| chunks.get(chunk).cloned())? {
            Joined::Stream(stream) => return Ok(stream),
            Joined::Recipe(below) => below,
        };
        assert_eq!(recipe.level() + 1, level);
    }
}

fuzz_target!(|bytes: &[u8]| {
    // A chunk id of 32 bytes refers to at least one byte, on each of the levels.
    bounded((64 << 10) + 1024 * bytes.len(), || {
        let _ = follow(bytes, &Chunks::new());
        let mut input = Input::new(bytes);
        let levels = input.u8() % (LEVEL_MAX + 1);
        let cut_len = 64 + usize::from(input.u16() % 1024);
        let (at, bit) = (usize::from(input.u16()), input.u8() % 8);
        let stream = input.rest();
        let mut chunks = Chunks::new();
        let mut recipe = write(0, stream, cut_len, &mut chunks);
        for level in 1..=levels {
            recipe = write(level, &recipe, cut_len, &mut chunks);
        }
        assert_eq!(follow(&recipe, &chunks).as_deref(), Ok(stream));
        let at = at % recipe.len();
        recipe[at] ^= 1 << bit;
        // If the level changed, the stream may itself be a valid recipe.
        assert!(at == LEVEL_AT || follow(&recipe, &chunks).is_err());
    });
});
