//! Chunks are read again from the files that contain them while these are unchanged.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod forest;

use forest::{Forest, content, find, random, take, tree};
use mesh_snapshot::{ChunkId, ReadError};
use std::fs;

#[test]
fn a_chunk_is_read_from_any_file_that_still_has_it() {
    let forest = Forest::new();
    let bytes = forest.random("one", 5000, 1);
    forest.write("two", &bytes);
    forest.write("three", &bytes);
    let snapshot = take(&forest);
    let chunk = ChunkId::of(&bytes);
    let mut into = b"before".to_vec();
    fs::remove_file(forest.path("one")).unwrap();
    snapshot.read(&chunk, &mut into).unwrap();
    assert_eq!(into, bytes);
    forest.write("two", &random(5000, 2));
    forest.write("three", b"short");
    let error = snapshot.read(&chunk, &mut into).unwrap_err();
    assert!(matches!(error, ReadError::Changed { .. }), "{error}");
    assert!(into.is_empty());
}

#[test]
fn a_file_that_was_replaced_is_opened_again() {
    let forest = Forest::new();
    let bytes = forest.random("one", 5000, 1);
    let snapshot = take(&forest);
    let chunk = ChunkId::of(&bytes);
    let mut into = Vec::new();
    snapshot.read(&chunk, &mut into).unwrap();
    // The cached descriptor refers to the replaced file, which is empty now.
    let open = fs::File::options().write(true).open(forest.path("one")).unwrap();
    fs::write(forest.path("new"), &bytes).unwrap();
    fs::rename(forest.path("new"), forest.path("one")).unwrap();
    open.set_len(0).unwrap();
    snapshot.read(&chunk, &mut into).unwrap();
    assert_eq!(into, bytes);
}

#[test]
fn a_chunk_of_nothing_is_unknown() {
    let forest = Forest::new();
    let error = take(&forest).read(&ChunkId([7; 32]), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ReadError::Unknown(_)), "{error}");
}

#[test]
fn many_threads_read_many_files() {
    let forest = Forest::new();
    for nth in 0..200_u64 {
        forest.random(&format!("file-{nth}"), 100 + nth as usize * 500, nth);
    }
    let snapshot = take(&forest);
    let tree = tree(&snapshot);
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (snapshot, tree) = (&snapshot, &tree);
            scope.spawn(move || {
                for nth in (0..200).map(|nth| (nth * 7 + first * 50) % 200) {
                    let file = find(tree, &format!("file-{nth}"));
                    let expected = random(100 + nth as usize * 500, nth);
                    assert!(content(snapshot, tree, file) == expected);
                }
            });
        }
    });
}
