//! Which blocks and files are written for an image.

use std::fs;
use std::path::Path;

use mesh_chunks::Store;
use mesh_image::{Image, ImageError, Writer};

use crate::gardener::{Gardener, store, stored};
use crate::test_tree::TestTree;

const BLOCK: u64 = 4096;

fn blocks_len(image: &Image) -> u64 {
    image.blocks.as_ref().map_or(0, |path| fs::metadata(path).unwrap().len())
}

fn files(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_file()).count()
}

#[test]
fn what_files_have_in_common_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let (test_tree, store) = (TestTree::new(), store(folder.path()));
    let mut writer = Writer::new(folder.path(), u64::MAX);
    test_tree.random("one", 10 * BLOCK as usize, 1);
    test_tree.random("other", 10 * BLOCK as usize, 1);
    let image = writer.write(&stored(&test_tree, &store), &store).unwrap();
    assert_eq!(blocks_len(&image), 10 * BLOCK);
    fs::rename(test_tree.path("one"), test_tree.path("renamed")).unwrap();
    test_tree.random("another", 5 * BLOCK as usize, 2);
    let image = writer.write(&stored(&test_tree, &store), &store).unwrap();
    assert_eq!(blocks_len(&image), 15 * BLOCK);
}

#[test]
fn holes_and_small_files_take_no_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let (test_tree, store) = (TestTree::new(), store(folder.path()));
    test_tree.write("small", &[7; 2000]);
    let sparse = fs::File::create(test_tree.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let image = Writer::new(folder.path(), u64::MAX).write(&stored(&test_tree, &store), &store);
    let image = image.unwrap();
    assert_eq!(blocks_len(&image), 0);
    assert!(image.blocks.is_none());
    assert!(fs::metadata(&image.path).unwrap().len() < 1 << 20);
}

#[test]
fn blocks_that_are_of_no_use_are_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (test_tree, store) = (TestTree::new(), store(folder.path()));
    let mut writer = Writer::new(folder.path(), u64::MAX);
    let lens: Vec<_> = (1..5)
        .map(|seed| {
            test_tree.random("large", 40 << 20, seed);
            blocks_len(&writer.write(&stored(&test_tree, &store), &store).unwrap())
        })
        .collect();
    assert_eq!(lens, [40 << 20, 80 << 20, 40 << 20, 80 << 20]);
}

#[test]
fn what_is_missing_is_told_at_once_and_nothing_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (test_tree, store) = (TestTree::new(), store(folder.path()));
    test_tree.random("large", 1 << 20, 1);
    let tree = stored(&test_tree, &store);
    let other = tempfile::tempdir().unwrap();
    let empty = Store::open(other.path(), mesh_chunks::StoreOptions::default()).unwrap();
    let mut writer = Writer::new(folder.path(), u64::MAX);
    let error = writer.write(&tree, &empty).unwrap_err();
    let ImageError::Missing(mut missing) = error else { panic!("{error}") };
    let mut chunks: Vec<_> = tree.chunks().map(|(chunk, _)| chunk).collect();
    missing.sort_unstable();
    chunks.sort_unstable();
    assert_eq!(missing, chunks);
    assert_eq!(files(folder.path()), 1, "the empty file of blocks");
    assert_eq!(blocks_len(&writer.write(&tree, &store).unwrap()), 1 << 20);
}

#[test]
fn more_than_the_budget_is_refused_before_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (test_tree, store) = (TestTree::new(), store(folder.path()));
    let mut gardener = Gardener::new(&test_tree, 1);
    (0..50).for_each(|_| gardener.plant());
    let tree = gardener.harvest(&store);
    let refused = Writer::new(folder.path(), BLOCK).write(&tree, &store);
    assert!(matches!(refused, Err(ImageError::OverBudget { budget: BLOCK, .. })));
}
