//! Chunks are read again from the files that contain them while these are unchanged.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, content, find, random, take, tree};
use mesh_snapshot::{ChunkId, ReadError};
use std::fs;

#[test]
fn a_chunk_is_read_from_any_file_that_still_has_it() {
    let test_tree = TestTree::new();
    let bytes = test_tree.random("one", 5000, 1);
    test_tree.write("two", &bytes);
    test_tree.write("three", &bytes);
    let snapshot = take(&test_tree);
    let chunk = ChunkId::of(&bytes);
    let mut into = b"before".to_vec();
    fs::remove_file(test_tree.path("one")).unwrap();
    snapshot.read(&chunk, &mut into).unwrap();
    assert_eq!(into, bytes);
    test_tree.write("two", &random(5000, 2));
    test_tree.write("three", b"short");
    let error = snapshot.read(&chunk, &mut into).unwrap_err();
    assert!(matches!(error, ReadError::Changed { .. }), "{error}");
    assert!(into.is_empty());
}

#[test]
fn a_file_that_was_replaced_is_opened_again() {
    let test_tree = TestTree::new();
    let bytes = test_tree.random("one", 5000, 1);
    let snapshot = take(&test_tree);
    let chunk = ChunkId::of(&bytes);
    let mut into = Vec::new();
    snapshot.read(&chunk, &mut into).unwrap();
    // The cached descriptor refers to the replaced file, which is empty now.
    let open = fs::File::options().write(true).open(test_tree.path("one")).unwrap();
    fs::write(test_tree.path("new"), &bytes).unwrap();
    fs::rename(test_tree.path("new"), test_tree.path("one")).unwrap();
    open.set_len(0).unwrap();
    snapshot.read(&chunk, &mut into).unwrap();
    assert_eq!(into, bytes);
}

#[test]
fn a_chunk_of_no_file_is_unknown() {
    let test_tree = TestTree::new();
    let error = take(&test_tree).read(&ChunkId([7; 32]), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, ReadError::Unknown(_)), "{error}");
}

#[test]
fn many_threads_read_many_files() {
    let test_tree = TestTree::new();
    for nth in 0..200_u64 {
        test_tree.random(&format!("file-{nth}"), 100 + nth as usize * 500, nth);
    }
    let snapshot = take(&test_tree);
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
