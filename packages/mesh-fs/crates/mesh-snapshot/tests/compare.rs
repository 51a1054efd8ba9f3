//! Differences between two trees, as a cache of one of them needs them.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

mod forest;

use forest::{Forest, find, take, tree};
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
    let forest = Forest::new();
    forest.write("a/b", b"c");
    let (old, new) = (tree(&take(&forest)), tree(&take(&forest)));
    let comparison = compare(&old, &new);
    assert!(comparison.changes.is_empty());
    assert_eq!(comparison.matches, [0, 1, 2].map(|node| Some(NodeId(node))));
}

#[test]
fn each_change_is_told_once() {
    let forest = Forest::new();
    for name in ["attributes", "content", "inside/same", "inside/gone", "kind", "removed/x"] {
        forest.write(name, name.as_bytes());
    }
    symlink("one", forest.path("link")).unwrap();
    let old = tree(&take(&forest));
    fs::set_permissions(forest.path("attributes"), fs::Permissions::from_mode(0o711)).unwrap();
    forest.write("content", b"different");
    forest.write("added/with/more", b"");
    fs::remove_file(forest.path("inside/gone")).unwrap();
    fs::remove_file(forest.path("kind")).unwrap();
    forest.directory("kind");
    fs::remove_file(forest.path("link")).unwrap();
    symlink("two", forest.path("link")).unwrap();
    fs::remove_dir_all(forest.path("removed")).unwrap();
    let new = tree(&take(&forest));
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
fn no_two_nodes_go_on_from_the_same_one() {
    let forest = Forest::new();
    let path = forest.write("a", b"content");
    fs::hard_link(&path, forest.path("b")).unwrap();
    forest.write("c", b"other");
    let old = tree(&take(&forest));
    fs::remove_file(forest.path("b")).unwrap();
    forest.write("b", b"content");
    fs::remove_file(forest.path("c")).unwrap();
    fs::hard_link(&path, forest.path("c")).unwrap();
    let new = tree(&take(&forest));
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
