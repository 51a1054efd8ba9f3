//! What is different between two trees.

use crate::tree::attributes::{Kind, NodeId};
use crate::tree::{Body, Node, Tree};
use std::cmp::Ordering;

/// Something that is not as it was.
///
/// What is inside a directory that was added or removed is not told again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// There is a name where none was.
    Added {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// What it leads to, in the new tree.
        node: NodeId,
    },
    /// A name is not there any more.
    Removed {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// What it led to, in the old tree.
        node: NodeId,
    },
    /// A name leads to something of another kind, to a file with other bytes, to a symbolic link
    /// with another target, or to a file that is known by another name.
    Replaced {
        /// The directory, in the old tree.
        parent: NodeId,
        /// The name.
        name: &'a [u8],
        /// What it led to, in the old tree.
        old: NodeId,
        /// What it leads to, in the new tree.
        new: NodeId,
    },
    /// A node has other attributes, extended ones included; of a directory not the names in it.
    Attributes {
        /// In the old tree.
        old: NodeId,
        /// In the new tree.
        new: NodeId,
    },
}

/// What is different between two trees, and what is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Comparison<'a> {
    /// In the order of the trees.
    pub changes: Vec<Change<'a>>,
    /// For each node of the new tree the node of the old one that it goes on from: of the same
    /// path, kind and content. No two nodes go on from the same one.
    ///
    /// A file with other bytes is another node: who reads it while one tree takes the place of the
    /// other would see the size of one with the bytes of the other.
    pub matches: Vec<Option<NodeId>>,
}

struct Walk<'a> {
    old: &'a Tree,
    new: &'a Tree,
    comparison: Comparison<'a>,
    /// Nodes of the old tree that a node of the new one goes on from.
    taken: Vec<bool>,
    /// Directories of both trees that are still to be compared, the next one last.
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

    /// Lets a node go on from another one of the same path, or tells that it cannot.
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

/// Whether nothing is different that stays the same while a node exists.
fn is_alike(one: &Node, other: &Node) -> bool {
    let is_device = matches!(one.kind, Kind::CharDevice | Kind::BlockDevice);
    one.kind == other.kind && (!is_device || one.stored_or_device == other.stored_or_device)
}

/// A node without what leads elsewhere.
fn attributes(node: &Node) -> Node {
    Node { body: Body::Nothing, ..*node }
}
