//! A program does not read files again that an earlier program has recorded.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, content, find, random, take, tree};
use mesh_snapshot::{ChunkId, DecodeError, Ledger, LedgerFile, Options, Snapshot};
use proptest::prelude::*;
use rustix::fs::{Timespec, Timestamps, XattrFlags};
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

fn resume(test_tree: &TestTree, ledger: &[u8]) -> Snapshot {
    let ledger = Ledger::decode(ledger).unwrap();
    Snapshot::resume(test_tree.root(), &Options::default(), &ledger).unwrap()
}

/// Files of several kinds that have been unchanged for a while.
fn calm() -> TestTree {
    let test_tree = TestTree::new();
    test_tree.random("large", 20_000_000, 1);
    for nth in 0..50 {
        test_tree.random(&format!("{}/file-{nth}", nth % 3), nth * 700, nth as u64);
    }
    let path = test_tree.write("a/b/c", b"content");
    let _ = rustix::fs::setxattr(&path, "user.name", b"value", XattrFlags::empty());
    fs::hard_link(&path, test_tree.path("0/again")).unwrap();
    symlink("b", test_tree.path("z")).unwrap();
    File::create(test_tree.path("hole")).unwrap().set_len(10_000_000).unwrap();
    test_tree.tick();
    test_tree
}

fn times_of(path: &Path) -> Timestamps {
    let stat = rustix::fs::stat(path).unwrap();
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as i64 },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 },
    }
}

#[test]
fn unchanged_files_in_the_ledger_are_not_read() {
    let test_tree = calm();
    let before = take(&test_tree);
    assert_eq!((before.files_read(), before.reused()), (53, 0));
    let after = resume(&test_tree, &before.ledger());
    assert_eq!((after.files_read(), after.bytes_read(), after.reused()), (0, 0, 53));
    assert_eq!(after.id(), before.id());
    // The records carry over to the next ledger.
    assert_eq!(after.ledger(), before.ledger());
    let tree = tree(&after);
    assert!(content(&after, &tree, find(&tree, "large")) == random(20_000_000, 1));
}

#[test]
fn a_change_that_keeps_the_size_and_mtime_is_detected() {
    let test_tree = calm();
    let ledger = take(&test_tree).ledger();
    let path = test_tree.path("1/file-40");
    let times = times_of(&path);
    test_tree.random("1/file-40", 28_000, 99);
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    test_tree.write("1/new", b"new");
    fs::remove_file(test_tree.path("2/file-2")).unwrap();
    fs::rename(test_tree.path("large"), test_tree.path("larger")).unwrap();
    let after = resume(&test_tree, &ledger);
    assert_eq!(after.id(), take(&test_tree).id());
    let tree = tree(&after);
    assert!(content(&after, &tree, find(&tree, "1/file-40")) == random(28_000, 99));
    assert!(after.bytes_read() <= 28_003 + 20_000_000);
}

#[test]
fn another_file_at_the_same_path_is_read() {
    let test_tree = calm();
    let ledger = take(&test_tree).ledger();
    let (path, other) = (test_tree.path("1/file-40"), test_tree.path("other"));
    fs::copy(&path, &other).unwrap();
    let times = times_of(&path);
    rustix::fs::utimensat(rustix::fs::CWD, &other, &times, rustix::fs::AtFlags::empty()).unwrap();
    fs::rename(&other, &path).unwrap();
    let after = resume(&test_tree, &ledger);
    assert_eq!((after.files_read(), after.bytes_read()), (1, 28_000));
}

#[test]
fn a_change_at_the_time_of_the_first_snapshot_is_detected() {
    let test_tree = TestTree::new();
    for nth in 0..100_u8 {
        test_tree.write("file", &[nth, 0]);
        let ledger = take(&test_tree).ledger();
        test_tree.write("file", &[nth, 1]);
        let after = resume(&test_tree, &ledger);
        let tree = tree(&after);
        assert_eq!(content(&after, &tree, find(&tree, "file")), [nth, 1]);
    }
}

#[test]
fn a_change_of_chunk_ids_requires_a_new_ledger_version() {
    let test_tree = TestTree::new();
    test_tree.random("file", 3_000_000, 7);
    let names: Vec<u8> = tree(&take(&test_tree)).chunks().flat_map(|(chunk, _)| chunk.0).collect();
    let sum = ChunkId::of(&names).to_string();
    // A change of chunking or naming must raise the version of ledgers, and update this checksum.
    assert_eq!((&sum[..16], take(&test_tree).ledger()[8]), ("ce01da916ae19d37", 1));
}

#[test]
fn another_version_is_distinguished_from_damage() {
    let ledger = take(&calm()).ledger();
    let mut other = ledger.clone();
    other[8] += 1;
    assert_eq!(Ledger::decode(&other).err(), Some(DecodeError::Version));
    assert_eq!(Ledger::decode(b"").err(), Some(DecodeError::Version));
    assert!(matches!(Ledger::decode(&ledger[..ledger.len() - 1]), Err(DecodeError::Wrong(_))));
}

fn place(folder: &Path, root: &Path) -> LedgerFile {
    LedgerFile::open(folder, root, &Options::default()).unwrap()
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|one| one.unwrap().path()).collect();
    files.sort_unstable();
    files
}

#[test]
fn a_ledger_is_loaded_only_for_the_same_directory_and_options() {
    let (test_tree, folder) = (calm(), tempfile::tempdir().unwrap());
    let snapshot = take(&test_tree);
    let here = place(folder.path(), test_tree.root());
    assert!(here.load().is_none());
    here.save(&snapshot.ledger()).unwrap();
    here.save(&snapshot.ledger()).unwrap();
    let same = place(folder.path(), &test_tree.root().join("a/.."));
    assert_eq!(same.load().unwrap().len(), 53);
    assert!(place(folder.path(), &test_tree.path("a")).load().is_none());
    let ignoring = Options { ignore: vec!["x".into()], ..Options::default() };
    let others = LedgerFile::open(folder.path(), test_tree.root(), &ignoring).unwrap();
    assert!(others.load().is_none());
    let files = files_in(folder.path());
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].metadata().unwrap().permissions().mode() & 0o7777, 0o600);
}

#[test]
fn an_invalid_ledger_file_is_ignored() {
    let (test_tree, folder) = (calm(), tempfile::tempdir().unwrap());
    let here = place(folder.path(), test_tree.root());
    here.save(&take(&test_tree).ledger()).unwrap();
    let [file] = &files_in(folder.path())[..] else { panic!("there is one") };
    let good = fs::read(file).unwrap();
    for bad in [&b""[..], b"meshkept", &good[..good.len() / 2]] {
        fs::write(file, bad).unwrap();
        assert!(here.load().is_none());
    }
    // A symbolic link, a directory, and a pipe without a writer.
    fs::remove_file(file).unwrap();
    fs::write(folder.path().join("elsewhere"), &good).unwrap();
    symlink("elsewhere", file).unwrap();
    assert!(here.load().is_none());
    fs::remove_file(file).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        file,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(here.load().is_none());
    here.save(&good).unwrap();
    assert!(here.load().is_some());
}

#[test]
fn an_untrusted_folder_or_file_is_not_used() {
    let (test_tree, folder) = (TestTree::new(), tempfile::tempdir().unwrap());
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o722)).unwrap();
    assert!(LedgerFile::open(folder.path(), test_tree.root(), &Options::default()).is_err());
    if rustix::process::geteuid().is_root() {
        let (folder, file) = (tempfile::tempdir().unwrap(), test_tree.write("file", b"content"));
        test_tree.tick();
        let here = place(folder.path(), test_tree.root());
        here.save(&take(&test_tree).ledger()).unwrap();
        assert!(here.load().is_some());
        std::os::unix::fs::chown(&files_in(folder.path())[0], Some(12_345), None).unwrap();
        assert!(here.load().is_none(), "a file of others");
        std::os::unix::fs::chown(folder.path(), Some(12_345), None).unwrap();
        assert!(LedgerFile::open(folder.path(), &file, &Options::default()).is_err());
    }
}

#[test]
fn old_ledgers_and_unfinished_files_are_removed() {
    let (test_tree, folder) = (TestTree::new(), tempfile::tempdir().unwrap());
    let ledger = take(&test_tree).ledger();
    let left = folder.path().join("0.0.unfinished");
    let busy = folder.path().join("0.1.unfinished");
    fs::write(&left, "of a writer that was killed").unwrap();
    let writing = File::create(&busy).unwrap();
    rustix::fs::flock(&writing, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let first = place(folder.path(), Path::new("/0"));
    for nth in 0..300 {
        place(folder.path(), Path::new(&format!("/{nth}"))).save(&ledger).unwrap();
        test_tree.tick();
        assert!(first.load().is_some(), "it is used again and again");
    }
    assert!(!left.exists() && busy.exists());
    assert_eq!(files_in(folder.path()).len(), 256 + 1);
    assert!(place(folder.path(), Path::new("/1")).load().is_none());
    assert!(place(folder.path(), Path::new("/299")).load().is_some());
}

#[test]
fn concurrent_saves_leave_one_complete_ledger() {
    let (test_tree, folder) = (calm(), tempfile::tempdir().unwrap());
    let ledger = take(&test_tree).ledger();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let here = place(folder.path(), test_tree.root());
                for _ in 0..50 {
                    // Another thread may have removed the temporary file before it was locked.
                    let _ = here.save(&ledger);
                    let found = here.load();
                    assert!(found.is_none_or(|found| found.len() == 53));
                }
            });
        }
    });
    place(folder.path(), test_tree.root()).save(&ledger).unwrap();
    assert_eq!(files_in(folder.path()).len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_corrupted_ledger_is_refused_and_harmless_with_a_valid_checksum(
        seed in any::<u64>(),
        changes in 1_usize..6,
    ) {
        let mut ledger = sample().clone();
        for number in random(changes * 16, seed).chunks(16) {
            let at = u64::from_le_bytes(number[..8].try_into().unwrap()) as usize % ledger.len();
            match number[8] % 4 {
                0 => ledger[at] = number[9],
                1 => ledger[at] ^= 1 << (number[9] % 8),
                2 => { ledger.remove(at); }
                _ => ledger.insert(at, number[9]),
            }
        }
        if &ledger != sample() {
            prop_assert!(Ledger::decode(&ledger).is_err());
        }
        if ledger.len() > 41 {
            let check = ChunkId::of(&ledger[41..]);
            ledger[9..41].copy_from_slice(&check.0);
            if let Ok(ledger) = Ledger::decode(&ledger) {
                prop_assert!(ledger.len() <= 60);
            }
        }
    }
}

fn sample() -> &'static Vec<u8> {
    static SAMPLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    SAMPLE.get_or_init(|| {
        let test_tree = calm();
        fs::remove_file(test_tree.path("large")).unwrap();
        take(&test_tree).ledger()
    })
}
