//! Arbitrary bytes as the descriptions of two trees: they are rejected, or all operations work.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mesh_fuzz_targets::{Input, bounded};
use mesh_snapshot::{Kind, NodeId, Tree, compare};

fn visit(tree: &Tree) {
    let mut entries = 0;
    for node in (0..tree.len() as u32).map(NodeId) {
        let attributes = tree.attributes(node);
        let end = tree.extents(node).last().map_or(0, |extent| extent.end);
        assert!(attributes.kind != Kind::File || attributes.size == end);
        assert!(attributes.stored <= attributes.size);
        assert!(tree.parent(node).0 <= node.0);
        tree.xattrs(node).for_each(|(name, _)| assert!(!name.is_empty()));
        let _ = tree.target(node);
        let mut before: Option<&[u8]> = None;
        for (nth, (name, inside)) in tree.children(node).enumerate() {
            assert!(before < Some(name) && ![&b"."[..], b".."].contains(&name));
            assert!(!name.is_empty() && !name.iter().any(|byte| [0, b'/'].contains(byte)));
            assert_eq!(tree.lookup(node, name), Some(inside));
            assert_eq!(tree.child(node, nth), Some((name, inside)));
            before = Some(name);
            entries += 1;
        }
    }
    assert_eq!(tree.totals().entries, entries);
}

fuzz_target!(|bytes: &[u8]| {
    // A name and its entry are at least nine bytes of input, and a few table rows in memory.
    bounded((64 << 10) + 128 * bytes.len(), || {
        let mut input = Input::new(bytes);
        let first_len = usize::from(input.u16());
        let first = Tree::decode(input.take(first_len));
        let second = Tree::decode(input.rest());
        for tree in [&first, &second].into_iter().flatten() {
            visit(tree);
            let comparison = compare(tree, tree);
            assert!(comparison.changes.is_empty());
            assert!(comparison.matches.iter().all(Option::is_some));
        }
        if let (Ok(first), Ok(second)) = (first, second) {
            let comparison = compare(&first, &second);
            let is_there =
                |node: &Option<NodeId>| node.is_none_or(|at| (at.0 as usize) < first.len());
            assert!(comparison.matches.iter().all(is_there));
        }
    });
});
