//! What a mounted image shows.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mesh_image::{Shown, ShownOptions};

use crate::gardener::{Gardener, store};
use crate::test_tree::TestTree;

/// Observable properties of the entries of a tree, by path.
type Seen = BTreeMap<PathBuf, (u32, Option<u64>, u64, (i64, i64), u64, Vec<u8>, Vec<u8>)>;

fn look(root: &Path, path: &Path, seen: &mut Seen) {
    let told = fs::symlink_metadata(path).unwrap();
    let mut content = Vec::new();
    if told.is_file() {
        content = fs::read(path).unwrap();
    } else if told.is_symlink() {
        content = fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec();
    } else if told.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            look(root, &entry.unwrap().path(), seen);
        }
    }
    let mut note = [0; 4096];
    let len = rustix::fs::lgetxattr(path, "user.note", &mut note).unwrap_or(0);
    let links = (!told.is_dir()).then(|| told.nlink());
    let size = if told.is_dir() { 0 } else { told.size() };
    let time = (told.mtime(), told.mtime_nsec());
    let name = path.strip_prefix(root).unwrap().to_owned();
    let owner = u64::from(told.uid()) << 32 | u64::from(told.gid());
    seen.insert(name, (told.mode(), links, size, time, owner, note[..len].to_vec(), content));
}

fn seen(root: &Path) -> Seen {
    let mut seen = Seen::new();
    look(root, root, &mut seen);
    seen
}

fn compare(source: &Path, shown: &Path, seed: u64) {
    let (source, shown) = (seen(source), seen(shown));
    let names: Vec<_> = source.keys().chain(shown.keys()).collect();
    for name in names {
        assert!(source.get(name) == shown.get(name), "{name:?} in the garden {seed}");
    }
}

fn options(kept: &Path, is_writable: bool) -> ShownOptions {
    ShownOptions { kept: kept.to_owned(), budget_bytes: 1 << 40, is_writable }
}

/// Shows images at a directory; `None` if this machine does not support it.
fn open(point: &Path, kept: &Path, is_writable: bool) -> Option<Shown> {
    fs::create_dir(point).unwrap();
    match Shown::open(point, &options(kept, is_writable)) {
        Ok(shown) => Some(shown),
        Err(error) => {
            assert!(error.is_forbidden(), "{error}");
            println!("not tested: {error}");
            None
        }
    }
}

#[test]
fn trees_of_any_kind_are_seen_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let (store, point) = (store(folder.path()), folder.path().join("point"));
    let Some(mut shown) = open(&point, folder.path(), false) else { return };
    for seed in 1..25 {
        let test_tree = TestTree::new();
        let mut gardener = Gardener::new(&test_tree, seed);
        for _ in 0..3 {
            (0..gardener.below(80)).for_each(|_| gardener.plant());
            shown.show(&gardener.harvest(&store), &store).unwrap();
            compare(test_tree.root(), &point, seed);
        }
    }
    assert!(shown.is_open());
    shown.close().unwrap();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
    assert_eq!(fs::read_dir(folder.path().join("shown")).unwrap().count(), 0);
}

#[test]
fn large_directories_are_found_by_each_name() {
    let folder = tempfile::tempdir().unwrap();
    let (store, point) = (store(folder.path()), folder.path().join("point"));
    let Some(mut shown) = open(&point, folder.path(), false) else { return };
    let test_tree = TestTree::new();
    for nth in 0..3000 {
        let name = format!("{}{nth}", "x".repeat(nth % 200));
        test_tree.write(&name, b"");
    }
    shown.show(&crate::gardener::stored(&test_tree, &store), &store).unwrap();
    for entry in fs::read_dir(test_tree.root()).unwrap() {
        let name = entry.unwrap().file_name();
        assert!(point.join(&name).is_file(), "{name:?}");
        let other = [name.as_bytes(), b"!"].concat();
        assert!(!point.join(OsStr::from_bytes(&other)).exists());
    }
    assert_eq!(fs::read_dir(&point).unwrap().count(), 3000);
}

#[test]
fn who_has_a_file_open_reads_on_when_many_images_have_come() {
    let folder = tempfile::tempdir().unwrap();
    let (store, point) = (store(folder.path()), folder.path().join("point"));
    let Some(mut shown) = open(&point, folder.path(), true) else { return };
    let test_tree = TestTree::new();
    let first = test_tree.random("file", 200_000, 1);
    shown.show(&crate::gardener::stored(&test_tree, &store), &store).unwrap();
    let mut file = File::open(point.join("file")).unwrap();
    fs::write(point.join("own"), "own").unwrap();
    for seed in 2..12 {
        let content = test_tree.random("file", 200_000, seed);
        shown.show(&crate::gardener::stored(&test_tree, &store), &store).unwrap();
        assert!(fs::read(point.join("file")).unwrap() == content);
        assert_eq!(fs::read(point.join("own")).unwrap(), b"own");
    }
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    assert!(content == first);
}
