//! Arbitrary bytes are either decoded to a valid tree or rejected.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use crate::test_tree;
use crate::test_tree::{TestTree, take};
use mesh_snapshot::{
    ChunkId, DEPTH_MAX, DecodeError, Joined, Kind, NodeId, RECIPE_LEN_MAX, Recipe, Tree, compare,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;

const ROOT: &[u8] = b"meshtree\x01\x01\x00\x00\x00\x00\x00";
const DIRECTORY: &[u8] = b"\x01\x00\x00\x00\x00\x00";
const EMPTY: &[u8] = b"\x02\x00\x00\x00\x00\x00\x00";

fn named(name: &[u8]) -> Vec<u8> {
    [&[name.len() as u8], name].concat()
}

/// Decodes a root directory with these bytes as its entries.
fn with(parts: &[&[u8]]) -> Result<Tree, DecodeError> {
    Tree::decode(&[ROOT, &parts.concat(), b"\0"].concat())
}

/// Accesses all parts of a tree.
fn visit(tree: &Tree) {
    let mut entries = 0;
    for node in (0..tree.len() as u32).map(NodeId) {
        let attributes = tree.attributes(node);
        let end = tree.extents(node).last().map_or(0, |extent| extent.end);
        assert!(attributes.kind != Kind::File || attributes.size == end);
        assert!(attributes.stored <= attributes.size);
        assert!(tree.parent(node).0 <= node.0);
        tree.xattrs(node).for_each(|(name, _)| assert!(!name.is_empty()));
        let children: Vec<_> = tree.children(node).collect();
        assert!(children.is_sorted_by(|(one, _), (other, _)| one < other));
        for (nth, (name, inside)) in children.iter().enumerate() {
            assert_eq!(tree.lookup(node, name), Some(*inside));
            assert_eq!(tree.child(node, nth), Some((*name, *inside)));
            let is_directory = tree.attributes(*inside).kind == Kind::Directory;
            assert!(!is_directory || tree.parent(*inside) == node);
        }
        entries += children.len() as u64;
        tree.target(node);
    }
    assert_eq!(tree.totals().entries, entries);
    let comparison = compare(tree, tree);
    assert!(comparison.changes.is_empty());
    assert!(comparison.matches.iter().all(Option::is_some));
}

/// A description with nodes of several kinds.
fn sample() -> Vec<u8> {
    let test_tree = TestTree::new();
    for nth in 0..20 {
        test_tree.random(&format!("{}/file-{nth}", nth % 3), nth * 3000, nth as u64);
    }
    let path = test_tree.write("a/b/c", b"content");
    let name = "user.name";
    let _ = rustix::fs::setxattr(&path, name, b"value", rustix::fs::XattrFlags::empty());
    fs::hard_link(&path, test_tree.path("b")).unwrap();
    fs::hard_link(&path, test_tree.path("0/again")).unwrap();
    symlink("b", test_tree.path("z")).unwrap();
    fs::File::create(test_tree.path("hole")).unwrap().set_len(10_000_000).unwrap();
    take(&test_tree).stream().to_vec()
}

#[test]
fn a_description_decodes_to_a_tree() {
    visit(&Tree::decode(&sample()).unwrap());
    visit(&with(&[]).unwrap());
}

#[test]
fn invalid_names_are_refused() {
    for name in [&b"."[..], b"..", b"a/b", b"/", b"a\0", b"\0"] {
        assert!(with(&[&named(name), EMPTY]).is_err(), "{name:?}");
    }
    for name in [&b"..."[..], b".a", b"\xff", b"a b"] {
        assert_eq!(with(&[&named(name), EMPTY]).unwrap().len(), 2);
    }
}

#[test]
fn names_must_be_sorted_and_unique() {
    let two = |one: &[u8], other: &[u8]| with(&[&named(one), EMPTY, &named(other), EMPTY]);
    assert!(two(b"a", b"b").is_ok());
    assert!(two(b"a", b"ab").is_ok());
    assert!(two(b"b", b"a").is_err());
    assert!(two(b"a", b"a").is_err());
}

#[test]
fn another_version_is_distinguished_from_malformed_input() {
    assert_eq!(Tree::decode(b"meshtree\x02"), Err(DecodeError::Version));
    assert_eq!(Tree::decode(b""), Err(DecodeError::Version));
    assert_eq!(Recipe::parse(b"meshlist\x02\x00"), Err(DecodeError::Version));
    assert!(matches!(Tree::decode(ROOT), Err(DecodeError::Malformed { .. })));
}

#[test]
fn a_hard_link_must_refer_to_an_earlier_file() {
    let link = |path: &[u8]| [&[8][..], &named(path)].concat();
    let one = |path: &[u8]| with(&[&named(b"a"), EMPTY, &named(b"b"), &link(path)]);
    let tree = one(b"a").unwrap();
    assert_eq!(tree.lookup(Tree::ROOT, b"b"), Some(NodeId(1)));
    assert_eq!(tree.attributes(NodeId(1)).links, 2);
    for path in [&b"b"[..], b"", b"c", b"/a", b"a/", b"./a", b"a/a"] {
        assert!(one(path).is_err(), "{path:?}");
    }
    // Links to a later name, to a directory, and to another link.
    assert!(with(&[&named(b"a"), &link(b"b"), &named(b"b"), EMPTY]).is_err());
    assert!(with(&[&named(b"a"), DIRECTORY, b"\0", &named(b"b"), &link(b"a")]).is_err());
    let chain = [&named(b"a"), EMPTY, &named(b"b"), &link(b"a"), &named(b"c"), &link(b"b")];
    assert!(with(&chain).is_err());
}

#[test]
fn extents_must_be_within_bounds() {
    let file = |pieces: &[u8]| with(&[&named(b"a"), &EMPTY[..6], pieces]);
    assert!(file(b"\x01\x03").is_ok());
    assert!(file(b"\x01\x01").is_err(), "an empty hole");
    assert!(file(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x03").is_err(), "too many");
    let longest = [b"\x01\x80\x80\x10", &[7; 32][..]].concat();
    assert_eq!(file(&longest).unwrap().attributes(NodeId(1)).stored, 128 << 10);
    let longer = [b"\x01\x82\x80\x10", &[7; 32][..]].concat();
    assert!(file(&longer).is_err());
    let huge = b"\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x03";
    assert!(file(huge).is_err(), "larger than a file may be");
}

#[test]
fn the_depth_of_nested_directories_is_limited() {
    let nested = |depth: usize| {
        let names = [&named(b"d"), DIRECTORY].concat().repeat(depth);
        with(&[&names, &vec![0; depth]])
    };
    assert_eq!(nested(DEPTH_MAX).unwrap().len(), DEPTH_MAX + 1);
    assert!(nested(DEPTH_MAX + 1).is_err());
    assert!(nested(1_000_000).is_err());
}

#[test]
fn two_hundred_thousand_names_take_little_memory() {
    let mut stream = ROOT.to_vec();
    for directory in 0..200 {
        stream.extend(named(format!("directory-{directory:03}").as_bytes()));
        stream.extend(DIRECTORY);
        for file in 0..1000 {
            stream.extend(named(format!("some-file-with-{file:05}").as_bytes()));
            stream.extend(EMPTY);
        }
        stream.push(0);
    }
    stream.push(0);
    let tree = Tree::decode(&stream).unwrap();
    assert_eq!(tree.totals().files, 200_000);
    let middle = tree.lookup(Tree::ROOT, b"directory-100").unwrap();
    assert!(tree.lookup(middle, b"some-file-with-00999").is_some());
    assert!(tree.memory() / 200_000 <= 100, "{}", tree.memory());
}

#[test]
fn a_recipe_is_joined_only_from_its_own_chunks() {
    let piece = b"some bytes".to_vec();
    let chunk = ChunkId::of(&piece);
    let recipe = |level: u8, len: u8| {
        Recipe::parse(&[b"meshlist\x01", &[level][..], &chunk.0, &[len]].concat()).unwrap()
    };
    let get = |_: &ChunkId| Some(piece.clone());
    assert_eq!(recipe(0, 10).join(get), Ok(Joined::Stream(piece.clone())));
    assert_eq!(recipe(0, 10).join(|_| None), Err(DecodeError::Missing(chunk)));
    assert_eq!(recipe(0, 9).join(get), Err(DecodeError::Wrong(chunk)));
    assert_eq!(recipe(0, 10).join(|_| Some(vec![0; 10])), Err(DecodeError::Wrong(chunk)));
    assert_eq!(recipe(1, 10).join(get), Err(DecodeError::Version));
}

#[test]
fn recipe_levels_must_decrease_by_one() {
    let inner = b"meshlist\x01\x01".to_vec();
    let chunk = ChunkId::of(&inner);
    let recipe = |level: u8| [b"meshlist\x01", &[level][..], &chunk.0, &[10]].concat();
    let join = |level| Recipe::parse(&recipe(level)).unwrap().join(|_| Some(inner.clone()));
    assert!(matches!(join(2), Ok(Joined::Recipe(below)) if below.level() == 1));
    assert!(join(1).is_err());
    assert!(join(3).is_err());
    assert!(Recipe::parse(&recipe(5)).is_err());
    let long = [&recipe(0)[..], &[0; RECIPE_LEN_MAX]].concat();
    assert_eq!(Recipe::parse(&long), Err(DecodeError::TooLarge));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_corrupted_description_is_a_valid_tree_or_refused(
        seed in any::<u64>(),
        changes in 1_usize..6,
    ) {
        let mut stream = sample_once().clone();
        let numbers = test_tree::random(changes * 16, seed);
        for number in numbers.chunks(16) {
            let at = u64::from_le_bytes(number[..8].try_into().unwrap()) as usize % stream.len();
            match number[8] % 4 {
                0 => stream[at] = number[9],
                1 => stream[at] ^= 1 << (number[9] % 8),
                2 => { stream.remove(at); }
                _ => stream.insert(at, number[9]),
            }
        }
        if let Ok(tree) = Tree::decode(&stream) {
            visit(&tree);
        }
    }

    #[test]
    fn arbitrary_bytes_after_the_header_are_a_valid_tree_or_refused(bytes in vec(0_u8..9, 0..200)) {
        if let Ok(tree) = Tree::decode(&[ROOT, &bytes].concat()) {
            visit(&tree);
        }
    }

    #[test]
    fn any_recipe_is_parsed_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let parsed = Recipe::parse(&[b"meshlist\x01\x00", &bytes[..]].concat());
        if let Ok(recipe) = parsed {
            prop_assert_eq!(recipe.join(|_| None).is_ok(), bytes.is_empty());
        }
    }
}

fn sample_once() -> &'static Vec<u8> {
    static SAMPLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    SAMPLE.get_or_init(sample)
}
