//! Test data: chunks that are derived from a number, and folders for them.

use mesh_chunks::{ChunkId, Store, StoreOptions};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Packs of 64 KiB, and a budget of a thousand packs.
pub(crate) const SMALL: StoreOptions =
    StoreOptions { budget_bytes: 64 << 20, pack_bytes: 64 << 10, keep_cached: true };

pub(crate) struct Chunk {
    pub(crate) id: ChunkId,
    pub(crate) bytes: Vec<u8>,
}

/// Pseudorandom bytes derived from a number.
pub(crate) fn bytes(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// A chunk of this length.
pub(crate) fn chunk(number: u64, length: usize) -> Chunk {
    let bytes = bytes(number, length);
    Chunk { id: ChunkId::of(&bytes), bytes }
}

/// Chunks of 4 KiB.
pub(crate) fn chunks(numbers: std::ops::Range<u64>) -> Vec<Chunk> {
    numbers.map(|number| chunk(number, 4096)).collect()
}

pub(crate) fn ids(chunks: &[Chunk]) -> Vec<ChunkId> {
    chunks.iter().map(|chunk| chunk.id).collect()
}

pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder for the test")
}

pub(crate) fn open(folder: &Path, options: StoreOptions) -> Store {
    Store::open(folder, options).expect("a store")
}

pub(crate) fn put(store: &Store, chunks: &[Chunk]) {
    for chunk in chunks {
        store.put(chunk.id, &chunk.bytes).expect("a chunk is put");
    }
}

/// Counts the chunks that the store returns, and verifies the bytes of each.
pub(crate) fn count_right(store: &Store, chunks: &[Chunk]) -> usize {
    let mut right = 0;
    for chunk in chunks {
        let Some(found) = store.get(&chunk.id).expect("a chunk is read, or missing") else {
            continue;
        };
        assert!(found == chunk.bytes, "the bytes of {} are others", chunk.id);
        right += 1;
    }
    right
}

/// Returns the files with this extension, sorted by name.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder is listed")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    files
}

/// Returns the total length of the files in a folder.
pub(crate) fn bytes_in(folder: &Path) -> u64 {
    std::fs::read_dir(folder)
        .expect("the folder is listed")
        .map(|entry| entry.expect("an entry").metadata().map_or(0, |metadata| metadata.len()))
        .sum()
}
