//! Differences between two trees.

use crate::tree::attributes::{Kind, NodeId};
use crate::tree::{Body, Node, Tree};
use std::cmp::Ordering;

/// A difference between two trees.
///
/// The contents of a directory that was added or removed are not reported separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// A name was added.
    Added {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// The node of the name in the new tree.
        node: NodeId,
    },
    /// A name was removed.
    Removed {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// The node of the name in the old tree.
        node: NodeId,
    },
    /// A name has a node that does not match the old one.
    ///
    /// The node has a different kind, content or target, or one of the two nodes is already matched
    /// under another name.
    Replaced {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// The node of the name in the old tree.
        old: NodeId,
        /// The node of the name in the new tree.
        new: NodeId,
    },
    /// The attributes or extended attributes of a node differ. For a directory this does not
    /// include its entries.
    Attributes {
        /// The node in the old tree.
        old: NodeId,
        /// The node in the new tree.
        new: NodeId,
    },
}

/// Differences and matches between two trees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comparison<'a> {
    /// In the order of the trees.
    pub changes: Vec<Change<'a>>,
    /// For each node of the new tree, the matching node of the old tree, if there is one.
    ///
    /// Matching nodes have the same path, kind and content. Each old node matches at most one new
    /// node. A file with different bytes does not match: a process that reads it while one tree
    /// replaces the other could otherwise combine the size of one version with the bytes of the
    /// other.
    pub matches: Vec<Option<NodeId>>,
}

struct Walk<'a> {
    old: &'a Tree,
    new: &'a Tree,
    comparison: Comparison<'a>,
    /// Whether a node of the old tree is matched already.
    taken: Vec<bool>,
    /// Stack of the directories of both trees that are still to be compared.
    waiting: Vec<(NodeId, NodeId)>,
}

/// Compares two trees name by name.
pub fn compare<'a>(old: &'a Tree, new: &'a Tree) -> Comparison<'a> {
    let comparison = Comparison { changes: Vec::new(), matches: vec![None; new.len()] };
    let taken = vec![false; old.len()];
    let mut walk = Walk { old, new, comparison, taken, waiting: Vec::new() };
    walk.pair(Tree::ROOT, Tree::ROOT);
    while let Some((old, new)) = walk.waiting.pop() {
        let inside = walk.waiting.len();
        walk.directory(old, new);
        walk.waiting[inside..].reverse();
    }
    walk.comparison
}

impl<'a> Walk<'a> {
    /// Compares the names in a directory of both trees.
    fn directory(&mut self, parent: NodeId, other: NodeId) {
        let (old_tree, new_tree) = (self.old, self.new);
        let mut before = old_tree.children(parent).peekable();
        let mut after = new_tree.children(other).peekable();
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => return,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((one, _)), Some((other, _))) => one.cmp(other),
            };
            let gone = if order.is_le() { before.next() } else { None };
            let come = if order.is_ge() { after.next() } else { None };
            let change = match (gone, come) {
                (Some((name, old)), Some((_, new))) => {
                    if self.pair(old, new) {
                        continue;
                    }
                    Change::Replaced { parent, name, old, new }
                }
                (Some((name, node)), None) => Change::Removed { parent, name, node },
                (None, Some((name, node))) => Change::Added { parent, name, node },
                (None, None) => return,
            };
            self.comparison.changes.push(change);
        }
    }

    /// Matches two nodes of the same path if possible; returns whether they match.
    fn pair(&mut self, old: NodeId, new: NodeId) -> bool {
        let matched = &mut self.comparison.matches[new.0 as usize];
        if let Some(matched) = matched {
            return *matched == old;
        }
        let (one, other) = (self.old.node(old), self.new.node(new));
        let is_taken = &mut self.taken[old.0 as usize];
        let is_same = self.old.extents(old) == self.new.extents(new)
            && self.old.target(old) == self.new.target(new);
        if *is_taken || !is_same || !is_alike(one, other) {
            return false;
        }
        *is_taken = true;
        *matched = Some(old);
        if one.kind == Kind::Directory {
            self.waiting.push((old, new));
        }
        if attributes(one) != attributes(other) || !self.old.xattrs(old).eq(self.new.xattrs(new)) {
            self.comparison.changes.push(Change::Attributes { old, new });
        }
        true
    }
}

/// Returns whether all properties that cannot change during the lifetime of a node are equal.
fn is_alike(one: &Node, other: &Node) -> bool {
    let is_device = matches!(one.kind, Kind::CharDevice | Kind::BlockDevice);
    one.kind == other.kind && (!is_device || one.stored_or_device == other.stored_or_device)
}

/// Returns a node without its references to other parts of the tree.
fn attributes(node: &Node) -> Node {
    Node { body: Body::Nothing, ..*node }
}
