//! Chunks that are damaged on the disk are missing, and can be put again.

use crate::material::{
    Chunk, SMALL, bytes, chunk, chunks, count_right, files, folder, ids, open, put,
};
use mesh_chunks::Store;
use proptest::prelude::*;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Returns the offset of a chunk's bytes in a file.
fn place_of(file: &Path, chunk: &Chunk) -> u64 {
    let all = fs::read(file).expect("the pack is read");
    let at = all.windows(chunk.bytes.len()).position(|part| part == chunk.bytes);
    at.expect("the chunk is in the pack") as u64
}

fn flip(file: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(file).expect("the file is there");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("it is that long");
    file.write_all_at(&[byte[0] ^ 0x40], at).expect("a byte is written");
}

/// Puts the chunks again: afterwards this store and new ones find all of them.
fn heal(folder: &Path, store: &Store, chunks: &[Chunk]) {
    put(store, chunks);
    assert_eq!(count_right(store, chunks), chunks.len());
    assert_eq!(count_right(&open(folder, SMALL), chunks), chunks.len());
}

#[test]
fn a_flipped_byte_makes_one_chunk_missing_until_it_is_put_again() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let all = chunks(0..10);
    put(&store, &all);
    let pack = &files(folder.path(), "pack")[0];
    flip(pack, place_of(pack, &all[3]) + 4000);
    assert_eq!(count_right(&store, &all), 9);
    assert_eq!(store.usage().damaged, 1);
    assert_eq!(store.missing(&ids(&all)), [3]);
    // A store that is opened later knows about the damage without reading the chunk.
    let later = open(folder.path(), SMALL);
    assert_eq!(later.missing(&ids(&all)), [3]);
    assert_eq!(later.usage().damaged, 0);
    drop(later);
    heal(folder.path(), &store, &all);
}

#[test]
fn other_stores_find_the_replacement_of_a_damaged_chunk() {
    let folder = folder();
    let (store, other) = (open(folder.path(), SMALL), open(folder.path(), SMALL));
    let all = chunks(0..10);
    put(&store, &all);
    assert!(other.missing(&ids(&all)).is_empty());
    let pack = &files(folder.path(), "pack")[0];
    flip(pack, place_of(pack, &all[3]));
    assert_eq!(count_right(&store, &all), 9);
    put(&store, &all);
    assert_eq!(count_right(&other, &all), 10);
    assert_eq!(other.usage().damaged, 1);
}

#[test]
fn a_damaged_chunk_is_missing_in_whole_and_partial_reads() {
    let folder = folder();
    let chunk = chunk(1, 4096);
    for start in [0, 10] {
        let store = open(folder.path(), SMALL);
        store.put(chunk.id, &chunk.bytes).expect("it is put");
        let pack = &files(folder.path(), "pack")[0];
        flip(pack, fs::metadata(pack).expect("it is there").len() - 1);
        let mut into = vec![0; chunk.bytes.len() - start];
        assert!(!store.read(&chunk.id, start, &mut into).expect("no error"));
        assert!(into.iter().all(|byte| *byte == 0));
        assert!(!store.has(&chunk.id));
    }
}

#[test]
fn a_truncated_pack_keeps_its_remaining_chunks() {
    let folder = folder();
    let all = chunks(0..10);
    put(&open(folder.path(), SMALL), &all);
    let known = open(folder.path(), SMALL);
    let pack = &files(folder.path(), "pack")[0];
    let file = OpenOptions::new().write(true).open(pack).expect("the pack is there");
    file.set_len(4096 * 5 + 100).expect("it is truncated");
    let later = open(folder.path(), SMALL);
    assert_eq!(later.missing(&ids(&all)), [5, 6, 7, 8, 9]);
    assert_eq!(count_right(&known, &all), 5);
    heal(folder.path(), &later, &all);
    drop(later);
    heal(folder.path(), &known, &all);
}

#[test]
fn a_corrupt_index_has_no_chunks() {
    let folder = folder();
    let all = chunks(0..10);
    put(&open(folder.path(), SMALL), &all);
    fs::write(&files(folder.path(), "index")[0], bytes(1, 10_007)).expect("it is written");
    let store = open(folder.path(), SMALL);
    assert_eq!(store.missing(&ids(&all)).len(), 10);
    heal(folder.path(), &store, &all);
}

#[test]
fn a_torn_tail_is_overwritten() {
    let folder = folder();
    let all = chunks(0..9);
    put(&open(folder.path(), SMALL), &all[..3]);
    for (count, part) in [(3, 47), (6, 1)] {
        let watcher = open(folder.path(), SMALL);
        for (ending, length) in [("pack", 1000), ("index", part)] {
            let file = &files(folder.path(), ending)[0];
            let end = fs::metadata(file).expect("it is there").len();
            let file = OpenOptions::new().write(true).open(file).expect("it is there");
            file.write_all_at(&bytes(2, length), end).expect("it is written");
        }
        assert_eq!(count_right(&watcher, &all), count);
        put(&open(folder.path(), SMALL), &all[..count + 3]);
        assert_eq!(count_right(&watcher, &all), count + 3);
    }
    // All chunks are in one pack, which each new store took over.
    assert_eq!(files(folder.path(), "pack").len(), 1);
    assert_eq!(count_right(&open(folder.path(), SMALL), &all), 9);
}

#[test]
fn a_pack_without_its_index_has_no_chunks() {
    let folder = folder();
    let all = chunks(0..10);
    let store = open(folder.path(), SMALL);
    put(&store, &all);
    fs::remove_file(&files(folder.path(), "index")[0]).expect("it was there");
    let later = open(folder.path(), SMALL);
    assert_eq!(later.missing(&ids(&all)).len(), 10);
    heal(folder.path(), &later, &all);
}

#[test]
fn an_index_without_its_pack_has_no_chunks() {
    let folder = folder();
    let all = chunks(0..10);
    let store = open(folder.path(), SMALL);
    put(&store, &all);
    fs::remove_file(&files(folder.path(), "pack")[0]).expect("it was there");
    assert_eq!(open(folder.path(), SMALL).missing(&ids(&all)).len(), 10);
    assert_eq!(count_right(&store, &all), 0);
    heal(folder.path(), &store, &all);
}

#[test]
fn a_store_keeps_working_after_all_its_files_are_removed() {
    let folder = folder();
    let all = chunks(0..10);
    let store = open(folder.path(), SMALL);
    put(&store, &all);
    for file in files(folder.path(), "pack").iter().chain(&files(folder.path(), "index")) {
        fs::remove_file(file).expect("it was there");
    }
    assert!(!store.has(&chunk(99, 10).id));
    assert_eq!(count_right(&store, &all), 0);
    heal(folder.path(), &store, &all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_corrupted_file_never_yields_wrong_bytes(
        is_open_before: bool,
        ending in prop::sample::select(vec!["pack", "index"]),
        which: prop::sample::Index,
        at: prop::sample::Index,
        garbage in prop::collection::vec(any::<u8>(), 1..200),
        cut: Option<prop::sample::Index>,
    ) {
        let folder = folder();
        let all: Vec<_> = (0..40).map(|number| chunk(number, 100 + 97 * number as usize)).collect();
        let mut store = open(folder.path(), SMALL);
        put(&store, &all);
        let path = which.get(&files(folder.path(), ending)).clone();
        let file = OpenOptions::new().write(true).open(&path).expect("it is there");
        let length = file.metadata().expect("it is there").len() as usize;
        file.write_all_at(&garbage, at.index(length) as u64).expect("it is written");
        if let Some(cut) = cut {
            file.set_len(cut.index(length) as u64).expect("it is cut");
        }
        if !is_open_before {
            store = open(folder.path(), SMALL);
        }
        count_right(&store, &all);
        put(&store, &all);
        prop_assert_eq!(count_right(&store, &all), all.len());
        // A store that read an index before it was damaged knows chunks that others do not.
        let later = open(folder.path(), SMALL);
        put(&later, &all);
        prop_assert_eq!(count_right(&later, &all), all.len());
    }
}
