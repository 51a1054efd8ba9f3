//! Differences between two trees, as a cache of one of them needs them.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree::{TestTree, find, take, tree};
use mesh_snapshot::{Change, NodeId, Tree, compare};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

/// Describes changes as text, without changes of the times of directories.
fn words(old: &Tree, new: &Tree) -> Vec<String> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let is_directory = |node: NodeId| old.children(node).len() > 0;
    let word = |change: &Change<'_>| match *change {
        Change::Added { name, .. } => Some(format!("added {}", text(name))),
        Change::Removed { name, .. } => Some(format!("removed {}", text(name))),
        Change::Replaced { name, .. } => Some(format!("replaced {}", text(name))),
        Change::Attributes { old, .. } if is_directory(old) => None,
        Change::Attributes { old, .. } => Some(format!("attributes {}", old.0)),
    };
    compare(old, new).changes.iter().filter_map(word).collect()
}

#[test]
fn equal_trees_have_no_changes() {
    let test_tree = TestTree::new();
    test_tree.write("a/b", b"c");
    let (old, new) = (tree(&take(&test_tree)), tree(&take(&test_tree)));
    let comparison = compare(&old, &new);
    assert!(comparison.changes.is_empty());
    assert_eq!(comparison.matches, [0, 1, 2].map(|node| Some(NodeId(node))));
}

#[test]
fn each_change_is_reported_once() {
    let test_tree = TestTree::new();
    for name in ["attributes", "content", "inside/same", "inside/gone", "kind", "removed/x"] {
        test_tree.write(name, name.as_bytes());
    }
    symlink("one", test_tree.path("link")).unwrap();
    let old = tree(&take(&test_tree));
    fs::set_permissions(test_tree.path("attributes"), fs::Permissions::from_mode(0o711)).unwrap();
    test_tree.write("content", b"different");
    test_tree.write("added/with/more", b"");
    fs::remove_file(test_tree.path("inside/gone")).unwrap();
    fs::remove_file(test_tree.path("kind")).unwrap();
    test_tree.directory("kind");
    fs::remove_file(test_tree.path("link")).unwrap();
    symlink("two", test_tree.path("link")).unwrap();
    fs::remove_dir_all(test_tree.path("removed")).unwrap();
    let new = tree(&take(&test_tree));
    let attributes = find(&old, "attributes").0;
    let expected = [
        "added added".to_owned(),
        format!("attributes {attributes}"),
        "replaced content".to_owned(),
        "replaced kind".to_owned(),
        "replaced link".to_owned(),
        "removed removed".to_owned(),
        "removed gone".to_owned(),
    ];
    assert_eq!(words(&old, &new), expected);
    let matches = compare(&old, &new).matches;
    assert_eq!(matches[find(&new, "inside/same").0 as usize], Some(find(&old, "inside/same")));
    assert_eq!(matches[find(&new, "content").0 as usize], None);
    assert_eq!(matches[find(&new, "kind").0 as usize], None);
    assert_eq!(matches[find(&new, "added/with").0 as usize], None);
}

#[test]
fn an_old_node_matches_at_most_one_new_node() {
    let test_tree = TestTree::new();
    let path = test_tree.write("a", b"content");
    fs::hard_link(&path, test_tree.path("b")).unwrap();
    test_tree.write("c", b"other");
    let old = tree(&take(&test_tree));
    fs::remove_file(test_tree.path("b")).unwrap();
    test_tree.write("b", b"content");
    fs::remove_file(test_tree.path("c")).unwrap();
    fs::hard_link(&path, test_tree.path("c")).unwrap();
    let new = tree(&take(&test_tree));
    let comparison = compare(&old, &new);
    let (a, b, c) = (find(&old, "a"), find(&new, "b"), find(&old, "c"));
    let expected = [
        Change::Replaced { parent: Tree::ROOT, name: b"b", old: a, new: b },
        Change::Replaced { parent: Tree::ROOT, name: b"c", old: c, new: find(&new, "a") },
    ];
    let replaced = comparison.changes.iter().filter(|one| matches!(one, Change::Replaced { .. }));
    assert_eq!(replaced.copied().collect::<Vec<_>>(), expected);
    assert_eq!(comparison.matches[b.0 as usize], None);
    assert_eq!(comparison.matches[find(&new, "a").0 as usize], Some(a));
}
