//! Files that are excluded from a snapshot.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, find, tree};
use mesh_snapshot::{NodeId, Options, Snapshot, SnapshotError, Tree};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Returns all paths of a tree, with a slash after directories.
fn paths(tree: &Tree) -> Vec<String> {
    fn walk(tree: &Tree, directory: NodeId, prefix: &str, paths: &mut Vec<String>) {
        for (name, node) in tree.children(directory) {
            let path = format!("{prefix}{}", String::from_utf8_lossy(name));
            if tree.parent(node) == node {
                paths.push(path);
            } else {
                paths.push(format!("{path}/"));
                walk(tree, node, &format!("{path}/"), paths);
            }
        }
    }
    let mut paths = Vec::new();
    walk(tree, Tree::ROOT, "", &mut paths);
    paths
}

#[track_caller]
fn check(options: &Options, files: &[(&str, &str)], expected: &[&str]) {
    let test_tree = TestTree::new();
    for (name, content) in files {
        test_tree.write(name, content.as_bytes());
    }
    let snapshot = Snapshot::take(test_tree.root(), options, None).unwrap();
    assert_eq!(paths(&tree(&snapshot)), expected);
}

fn ignoring(patterns: &[&str]) -> Options {
    Options { ignore: patterns.iter().map(ToString::to_string).collect(), ..Options::default() }
}

#[test]
fn patterns_in_the_options_apply_to_the_whole_tree() {
    let files = [("a.o", ""), ("b/c.o", ""), ("b/c.rs", ""), ("target/x/y", ""), ("d/target", "")];
    check(&ignoring(&["*.o", "/target/"]), &files, &["b/", "b/c.rs", "d/", "d/target"]);
    check(
        &ignoring(&["*", "!*/", "!*.rs"]),
        &files,
        &["b/", "b/c.rs", "d/", "target/", "target/x/"],
    );
    check(&ignoring(&["# nothing", ""]), &files[..1], &["a.o"]);
}

#[test]
fn ignore_files_apply_to_their_directory() {
    let files = [
        (".meshignore", "*.log\n/only-here\nb/inner\n"),
        ("x.log", ""),
        ("only-here", ""),
        ("b/.meshignore", "!kept.log\n/x\n"),
        ("b/kept.log", ""),
        ("b/other.log", ""),
        ("b/only-here", ""),
        ("b/inner", ""),
        ("b/x", ""),
        ("b/deep/x", ""),
        ("b/deep/kept.log", ""),
        ("x", ""),
    ];
    let expected = [
        ".meshignore",
        "b/",
        "b/.meshignore",
        "b/deep/",
        "b/deep/kept.log",
        "b/deep/x",
        "b/kept.log",
        "b/only-here",
        "x",
    ];
    check(&Options::default(), &files, &expected);
}

#[test]
fn files_in_an_ignored_directory_cannot_be_included_again() {
    let files = [(".meshignore", "\u{feff}out/\r\n!out/kept\n"), ("out/kept", ""), ("in", "")];
    check(&Options::default(), &files, &[".meshignore", "in"]);
}

#[test]
fn the_options_override_ignore_files() {
    let files = [("d/.gitignore", "*.a\n!b.b\n"), ("d/a.a", ""), ("d/b.b", "")];
    let options = Options {
        ignore: vec!["*.b".to_owned(), "!*.a".to_owned()],
        ignore_files: vec![".gitignore".to_owned()],
        ..Options::default()
    };
    check(&options, &files, &["d/", "d/.gitignore", "d/a.a"]);
    let options = Options { ignore_files: Vec::new(), ..Options::default() };
    check(&options, &files, &["d/", "d/.gitignore", "d/a.a", "d/b.b"]);
}

#[test]
fn an_invalid_pattern_is_an_error() {
    let test_tree = TestTree::new();
    let error = Snapshot::take(test_tree.root(), &ignoring(&["a", "x[b-a]"]), None).unwrap_err();
    assert!(matches!(&error, SnapshotError::Pattern { pattern, .. } if pattern == "x[b-a]"));
    test_tree.write("a/.meshignore", b"{x");
    let error = Snapshot::take(test_tree.root(), &Options::default(), None).unwrap_err();
    assert!(error.to_string().contains("a/.meshignore"), "{error}");
}

#[test]
fn unreadable_files_are_an_error_or_skipped() {
    let test_tree = TestTree::new();
    for name in ["closed-file", "closed/inside", "open/file"] {
        let path = test_tree.write(name, b"content");
        let path = if name == "closed/inside" { test_tree.path("closed") } else { path };
        let mode = if name == "open/file" { 0o600 } else { 0 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let take = |skip_unreadable| {
        let options = Options { skip_unreadable, threads: 1, ..Options::default() };
        Snapshot::take(test_tree.root(), &options, None)
    };
    std::thread::scope(|scope| {
        let tested = scope.spawn(|| {
            // Drop the capabilities of this thread only: root can read everything.
            let mut sets = capabilities(None).unwrap();
            let all = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            sets.effective.remove(all);
            set_capabilities(None, sets).unwrap();
            let error = take(false).unwrap_err();
            assert!(matches!(error, SnapshotError::Unreadable { .. }), "{error}");
            let snapshot = take(true).unwrap();
            let skipped = [test_tree.path("closed"), test_tree.path("closed-file")];
            assert_eq!(snapshot.skipped(), skipped);
            let tree = tree(&snapshot);
            assert_eq!(paths(&tree), ["closed/", "open/", "open/file"]);
            assert_eq!(tree.attributes(find(&tree, "closed")).permissions, 0);
        });
        let _ = tested.join().map_err(|panic| std::panic::resume_unwind(panic));
    });
    fs::set_permissions(test_tree.path("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}
