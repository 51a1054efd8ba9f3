//! A snapshot preserves all kinds of files and their attributes.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, check, content, find, take, tree};
use mesh_snapshot::{Kind, Options, Snapshot, SnapshotError, Tree};
use rustix::fs::{Mode, SeekFrom, Timespec, Timestamps, XattrFlags, mknodat};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

#[test]
fn files_of_all_sizes_round_trip() {
    let test_tree = TestTree::new();
    for len in [0, 1, 8191, 8192, 8193, 100_000, 1 << 20, (1 << 20) + 1] {
        test_tree.random(&format!("of-{len}"), len, len as u64);
    }
    test_tree.directory("empty");
    test_tree.random("some/where/inside", 5000, 7);
    check(&test_tree);
}

#[test]
fn attributes_are_kept() {
    let test_tree = TestTree::new();
    let path = test_tree.write("file", b"content");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6751)).unwrap();
    let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: at(1, 1), last_modification: at(-5, 123_456_789) };
    rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    let tree = tree(&take(&test_tree));
    let attributes = tree.attributes(find(&tree, "file"));
    assert_eq!(attributes.permissions, 0o6751);
    assert_eq!((attributes.modified_s, attributes.modified_ns), (-5, 123_456_789));
    let system = fs::metadata(&path).unwrap();
    assert_eq!((attributes.uid, attributes.gid), (system.uid(), system.gid()));
    assert_eq!((attributes.size, attributes.stored, attributes.links), (7, 7, 1));
    let root = tree.attributes(Tree::ROOT);
    assert_eq!((root.kind, root.size, root.links), (Kind::Directory, 4096, 2));
}

#[test]
fn a_file_with_several_names_is_one_node() {
    let test_tree = TestTree::new();
    let first = test_tree.write("b/first", b"content");
    test_tree.directory("a/deep");
    fs::hard_link(&first, test_tree.path("a/deep/second")).unwrap();
    fs::hard_link(&first, test_tree.path("c")).unwrap();
    let outside = tempfile::tempdir_in(test_tree.root().parent().unwrap()).unwrap();
    fs::hard_link(&first, outside.path().join("outside")).unwrap();
    let snapshot = take(&test_tree);
    let tree = tree(&snapshot);
    let node = find(&tree, "b/first");
    assert_eq!(find(&tree, "a/deep/second"), node);
    assert_eq!(find(&tree, "c"), node);
    assert_eq!(tree.attributes(node).links, 3);
    assert_eq!(content(&snapshot, &tree, node), b"content");
    assert_eq!(tree.totals().files, 1);
    assert_eq!(tree.totals().entries, 6);
    assert_eq!(tree.attributes(find(&tree, "a")).links, 3);
}

#[test]
fn holes_have_no_chunks() {
    let test_tree = TestTree::new();
    let file = fs::File::create(test_tree.path("sparse")).unwrap();
    file.set_len(64 << 20).unwrap();
    rustix::io::pwrite(&file, &[7; 5000], 32 << 20).unwrap();
    fs::File::create(test_tree.path("hole")).unwrap().set_len(5).unwrap();
    let snapshot = take(&test_tree);
    let tree = tree(&snapshot);
    let node = find(&tree, "sparse");
    let attributes = tree.attributes(node);
    assert_eq!(attributes.size, 64 << 20);
    let knows_holes = rustix::fs::seek(&file, SeekFrom::Hole(0)) == Ok(0);
    assert!(!knows_holes || attributes.stored < 1 << 20, "{attributes:?}");
    let read = content(&snapshot, &tree, node);
    assert_eq!(read.len(), 64 << 20);
    assert!(read[32 << 20..][..5000].iter().all(|byte| *byte == 7));
    assert_eq!(read.iter().filter(|byte| **byte != 0).count(), 5000);
    assert_eq!(content(&snapshot, &tree, find(&tree, "hole")), [0; 5]);
}

#[test]
fn names_may_be_any_bytes() {
    let test_tree = TestTree::new();
    let names: [&[u8]; 5] = [b"\xff\xfe", b"new\nline", b" ", b"-", &[b'x'; 255]];
    for name in names {
        fs::write(test_tree.root().join(OsStr::from_bytes(name)), name).unwrap();
    }
    let snapshot = take(&test_tree);
    let tree = tree(&snapshot);
    for name in names {
        let node = tree.lookup(Tree::ROOT, name).unwrap();
        assert_eq!(content(&snapshot, &tree, node), name);
    }
    let listed: Vec<&[u8]> = tree.children(Tree::ROOT).map(|(name, _)| name).collect();
    assert!(listed.is_sorted());
    assert_eq!(listed.len(), 5);
    assert_eq!(tree.child(Tree::ROOT, 5), None);
}

#[test]
fn symlinks_and_special_files_are_nodes_without_content() {
    let test_tree = TestTree::new();
    symlink("some/where", test_tree.path("link")).unwrap();
    let _socket = UnixListener::bind(test_tree.path("socket")).unwrap();
    let fifo = test_tree.path("fifo");
    let mode = Mode::from_raw_mode(0o640);
    mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let tree = tree(&take(&test_tree));
    let link = find(&tree, "link");
    assert_eq!(tree.target(link), b"some/where");
    assert_eq!(tree.attributes(link).size, 10);
    assert_eq!(tree.attributes(link).kind, Kind::Symlink);
    assert_eq!(tree.attributes(find(&tree, "socket")).kind, Kind::Socket);
    assert_eq!(tree.attributes(find(&tree, "fifo")).kind, Kind::Fifo);
    assert_eq!(tree.lookup(link, b"x"), None);
    assert_eq!(tree.children(link).len(), 0);
    assert!(tree.extents(link).is_empty());
}

#[test]
fn extended_attributes_are_kept() {
    let test_tree = TestTree::new();
    let path = test_tree.write("file", b"content");
    let set =
        |name: &str, value: &[u8]| rustix::fs::setxattr(&path, name, value, XattrFlags::empty());
    if set("user.b", b"second").is_err() {
        // The file system of temporary files does not support extended attributes.
        return;
    }
    set("user.a", b"").unwrap();
    let tree = tree(&take(&test_tree));
    let xattrs: Vec<_> = tree.xattrs(find(&tree, "file")).collect();
    assert_eq!(xattrs, [(&b"user.a"[..], &b""[..]), (b"user.b", b"second")]);
    assert_eq!(tree.xattrs(Tree::ROOT).count(), 0);
}

#[test]
fn five_hundred_nested_directories_are_supported() {
    let test_tree = TestTree::new();
    // The whole path is longer than the kernel accepts.
    let mut directory = fs::File::open(test_tree.root()).unwrap();
    for level in 0..500 {
        let name = format!("level-{level:03}");
        rustix::fs::mkdirat(&directory, &name, Mode::RWXU).unwrap();
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        directory = rustix::fs::openat(&directory, &name, flags, Mode::empty()).unwrap().into();
    }
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE;
    let file = rustix::fs::openat(&directory, "file", flags, Mode::RUSR).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    let snapshot = take(&test_tree);
    let tree = tree(&snapshot);
    let mut node = Tree::ROOT;
    for level in 0..500 {
        let inside = tree.lookup(node, format!("level-{level:03}").as_bytes()).unwrap();
        assert_eq!(tree.parent(inside), node);
        node = inside;
    }
    let file = tree.lookup(node, b"file").unwrap();
    assert_eq!(content(&snapshot, &tree, file), b"deep");
}

#[test]
fn a_root_that_is_not_a_directory_is_an_error() {
    let test_tree = TestTree::new();
    let path = test_tree.write("file", b"");
    for path in [path, test_tree.path("nothing")] {
        let error = Snapshot::take(&path, &Options::default(), None).unwrap_err();
        assert!(matches!(error, SnapshotError::Root { .. }), "{error}");
    }
}
