//! Inode numbers of the nodes of the current tree.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_snapshot::{NodeId, Tree};

const GONE: u32 = u32::MAX;

/// The current tree, and the inode numbers of its nodes.
///
/// A number is never reused: what the kernel has cached for it always belongs to the same file. In
/// the first tree, numbers follow the order of the nodes.
pub(crate) struct Nodes {
    tree: Arc<Tree>,
    /// Inode number of each node; empty while the numbers follow the order.
    numbers: Vec<u64>,
    /// Node of each inode number, starting with number 1; empty while the numbers follow the order.
    nodes: Vec<u32>,
    /// Lookup count of each inode number, starting with number 1.
    lookups: Vec<AtomicU64>,
    /// Nodes of previous trees that the kernel may still use, for example as open files.
    gone: HashMap<u64, (Arc<Tree>, NodeId)>,
}

impl Nodes {
    pub(crate) fn new(tree: Arc<Tree>) -> Self {
        let lookups = (0..tree.len()).map(|_| AtomicU64::new(0)).collect();
        Self { tree, numbers: Vec::new(), nodes: Vec::new(), lookups, gone: HashMap::new() }
    }

    pub(crate) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the inode number of a node of the tree.
    pub(crate) fn number(&self, node: NodeId) -> u64 {
        self.numbers.get(node.0 as usize).copied().unwrap_or(u64::from(node.0) + 1)
    }

    /// Returns the node of an inode number, and the tree that contains it.
    pub(crate) fn find(&self, number: u64) -> Option<(&Arc<Tree>, NodeId)> {
        let place = usize::try_from(number.checked_sub(1)?).ok()?;
        let node = if self.nodes.is_empty() {
            u32::try_from(place).ok().filter(|_| place < self.tree.len())
        } else {
            self.nodes.get(place).copied().filter(|node| *node != GONE)
        };
        match node {
            Some(node) => Some((&self.tree, NodeId(node))),
            None => self.gone.get(&number).map(|(tree, node)| (tree, *node)),
        }
    }

    /// Increments the lookup count of an inode number.
    pub(crate) fn add_lookup(&self, number: u64) {
        if let Some(count) = self.count(number) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Decrements a lookup count. Returns true if the number belongs to a previous tree and is
    /// unused.
    pub(crate) fn forget(&self, number: u64, lookups: u64) -> bool {
        let Some(count) = self.count(number) else { return false };
        let before = count.fetch_sub(lookups, Ordering::Relaxed);
        before == lookups && self.gone.contains_key(&number)
    }

    /// Removes a node of a previous tree, unless the kernel has looked it up again.
    pub(crate) fn drop_gone(&mut self, number: u64) {
        if self.count(number).is_some_and(|count| count.load(Ordering::Relaxed) == 0) {
            self.gone.remove(&number);
        }
    }

    fn count(&self, number: u64) -> Option<&AtomicU64> {
        self.lookups.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Replaces the current tree.
    ///
    /// `before` contains, for each node of the new tree, the matching node of the old tree. Each
    /// old node occurs at most once.
    pub(crate) fn show(&mut self, tree: Arc<Tree>, before: &[Option<NodeId>]) {
        assert_eq!(before.len(), tree.len(), "each node of the new tree was or was not there");
        let mut next = self.lookups.len() as u64 + 1;
        let mut is_kept = vec![false; self.tree.len()];
        let mut numbers = Vec::with_capacity(tree.len());
        for old in before {
            if let Some(old) = old {
                is_kept[old.0 as usize] = true;
            }
            numbers.push(old.map_or_else(
                || {
                    next += 1;
                    next - 1
                },
                |old| self.number(old),
            ));
        }
        for old in (0..self.tree.len()).filter(|old| !is_kept[*old]) {
            let old = NodeId(u32::try_from(old).expect("a tree has fewer nodes than that"));
            let number = self.number(old);
            if self.count(number).is_some_and(|count| count.load(Ordering::Relaxed) > 0) {
                self.gone.insert(number, (Arc::clone(&self.tree), old));
            }
        }
        self.lookups.resize_with(usize::try_from(next - 1).unwrap_or(usize::MAX), Default::default);
        self.nodes = vec![GONE; self.lookups.len()];
        for (node, number) in (0..).zip(&numbers) {
            self.nodes[usize::try_from(number - 1).unwrap_or(usize::MAX)] = node;
        }
        self.numbers = numbers;
        self.tree = tree;
    }
}
