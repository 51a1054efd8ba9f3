//! Repeated snapshots: few chunks are new, and unchanged files are not read.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, content, find, moved, random, take, tree};
use mesh_snapshot::{Options, Snapshot};
use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

fn take_again(test_tree: &TestTree, previous: &Snapshot) -> Snapshot {
    Snapshot::take(test_tree.root(), &Options::default(), Some(previous)).unwrap()
}

/// Creates small files in directories of a hundred.
fn many(test_tree: &TestTree, count: usize) {
    for nth in 0..count {
        let name = format!("directory-{:03}/file-{nth:06}", nth / 100);
        test_tree.random(&name, 100 + nth % 900, nth as u64);
    }
}

#[test]
fn a_changed_byte_in_a_large_file_creates_few_new_chunks() {
    let test_tree = TestTree::new();
    let mut bytes = test_tree.random("large", 20_000_000, 1);
    many(&test_tree, 300);
    let before = take(&test_tree);
    bytes[11_111_111] ^= 1;
    test_tree.write("large", &bytes);
    let after = take(&test_tree);
    let (files, description) = moved(&before, &after);
    assert!(files > 0 && files + description <= 300_000, "{files} + {description}");
    let tree = tree(&after);
    assert!(content(&after, &tree, find(&tree, "large")) == bytes);
}

#[test]
fn a_byte_inserted_at_the_front_creates_few_new_chunks() {
    let test_tree = TestTree::new();
    let bytes = test_tree.random("large", 20_000_000, 2);
    let before = take(&test_tree);
    test_tree.write("large", &[b"x", &bytes[..]].concat());
    let (files, _) = moved(&before, &take(&test_tree));
    assert!(files > 0 && files <= 1_000_000, "{files}");
}

#[test]
fn an_added_file_changes_few_chunks_of_the_description() {
    let test_tree = TestTree::new();
    many(&test_tree, 3000);
    let before = take(&test_tree);
    test_tree.write("directory-014/file-between", b"new");
    let after = take(&test_tree);
    let (files, description) = moved(&before, &after);
    assert_eq!(files, 3);
    assert!(before.stream().len() > 150_000);
    assert!(description <= 32 << 10, "{description}");
}

#[test]
fn unchanged_files_are_not_read_again() {
    let test_tree = TestTree::new();
    many(&test_tree, 200);
    fs::hard_link(test_tree.path("directory-000/file-000007"), test_tree.path("again")).unwrap();
    test_tree.tick();
    let before = take(&test_tree);
    assert_eq!(before.reused(), 0);
    test_tree.write("directory-001/file-000150", b"new");
    fs::rename(test_tree.path("directory-000/file-000000"), test_tree.path("moved")).unwrap();
    test_tree.write("new", b"file");
    let after = take_again(&test_tree, &before);
    // A rename changes the ctime, so the file that moved is read too.
    assert_eq!(after.reused(), 198);
    assert_eq!(after.stream(), take(&test_tree).stream());
    let tree = tree(&after);
    assert_eq!(content(&after, &tree, find(&tree, "directory-001/file-000150")), b"new");
    assert_eq!(find(&tree, "again"), find(&tree, "directory-000/file-000007"));
}

#[test]
fn a_change_with_the_same_size_and_timestamp_is_detected() {
    let test_tree = TestTree::new();
    for nth in 0..50_u8 {
        test_tree.write("file", &[nth; 10]);
        let before = take(&test_tree);
        // The same size, and the same time within the resolution of the system's clock.
        test_tree.write("file", &[nth ^ 0xff; 10]);
        let after = take_again(&test_tree, &before);
        let tree = tree(&after);
        assert_eq!(content(&after, &tree, find(&tree, "file")), [nth ^ 0xff; 10]);
    }
}

#[test]
fn holes_and_extended_attributes_are_kept_without_reading() {
    let test_tree = TestTree::new();
    let file = fs::File::create(test_tree.path("sparse")).unwrap();
    file.set_len(1 << 20).unwrap();
    rustix::io::pwrite(&file, &random(5000, 3), 500_000).unwrap();
    let _ = rustix::fs::fsetxattr(&file, "user.a", b"b", rustix::fs::XattrFlags::empty());
    test_tree.tick();
    let before = take(&test_tree);
    let after = take_again(&test_tree, &before);
    assert_eq!(after.reused(), 1);
    assert_eq!(after.stream(), before.stream());
    assert_eq!(after.id(), before.id());
}

#[test]
fn any_number_of_threads_takes_the_same_snapshot() {
    let test_tree = TestTree::new();
    many(&test_tree, 500);
    test_tree.random("large", 40 << 20, 4);
    let file = fs::File::create(test_tree.path("sparse")).unwrap();
    file.set_len(100 << 20).unwrap();
    rustix::io::pwrite(&file, &random(17 << 20, 5), 30 << 20).unwrap();
    let take = |threads| {
        let options = Options { threads, ..Options::default() };
        Snapshot::take(test_tree.root(), &options, None).unwrap()
    };
    let one = take(1);
    for threads in [0, 2, 3, 8] {
        assert_eq!(take(threads).stream(), one.stream());
    }
    let (files, description) = moved(&one, &take(5));
    assert_eq!((files, description), (0, 0));
}

#[test]
fn a_snapshot_of_a_growing_file_is_a_prefix_of_its_content() {
    let test_tree = TestTree::new();
    let all = random(32 << 20, 6);
    // Large enough to be read by several threads.
    let begun = 17 << 20;
    test_tree.write("log", &all[..begun]);
    many(&test_tree, 20);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = fs::File::options().append(true).open(test_tree.path("log")).unwrap();
            for piece in all[begun..].chunks(1000) {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                log.write_all(piece).unwrap();
            }
        });
        let snapshots: Vec<_> = (0..2).map(|_| take(&test_tree)).collect();
        is_over.store(true, Ordering::Relaxed);
        for snapshot in snapshots {
            let tree = tree(&snapshot);
            let read = content(&snapshot, &tree, find(&tree, "log"));
            assert!(read.len() >= begun && read == all[..read.len()]);
        }
    });
}

#[test]
fn files_created_and_removed_during_a_snapshot_do_no_harm() {
    let test_tree = TestTree::new();
    many(&test_tree, 100);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let path = test_tree.write("coming/inside/file", b"here");
                fs::rename(&path, test_tree.path("directory-000/gone")).unwrap();
                fs::remove_dir_all(test_tree.path("coming")).unwrap();
                fs::remove_file(test_tree.path("directory-000/gone")).unwrap();
            }
        });
        for _ in 0..20 {
            let tree = tree(&take(&test_tree));
            assert!(tree.totals().files >= 100);
            find(&tree, "directory-000/file-000050");
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
