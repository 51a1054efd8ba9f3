//! What the kernel calls the nodes of the tree that is shown.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mesh_snapshot::{NodeId, Tree};

const GONE: u32 = u32::MAX;

/// The tree that is shown, and the number that the kernel has for each of its nodes.
///
/// Numbers are given once: what the kernel has cached under one stays that file for ever. In the
/// first tree that is shown they follow the order of the nodes.
pub(crate) struct Nodes {
    tree: Arc<Tree>,
    /// The number of each node; empty while they follow the order.
    numbers: Vec<u64>,
    /// The node of each number, less one; empty while they follow the order.
    nodes: Vec<u32>,
    /// How often the kernel was handed each number, less one, and has not forgotten it.
    lookups: Vec<AtomicU64>,
    /// What is in no tree any more, and somebody may have open.
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

    /// Gives the number of a node of the tree.
    pub(crate) fn number(&self, node: NodeId) -> u64 {
        self.numbers.get(node.0 as usize).copied().unwrap_or(u64::from(node.0) + 1)
    }

    /// Gives what has a number: a node, and the tree it is of.
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

    /// Notes that the kernel was handed a number.
    pub(crate) fn hand_out(&self, number: u64) {
        if let Some(count) = self.count(number) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel has forgotten a number; says whether nothing needs it any more.
    pub(crate) fn forget(&self, number: u64, lookups: u64) -> bool {
        let Some(count) = self.count(number) else { return false };
        let before = count.fetch_sub(lookups, Ordering::Relaxed);
        before == lookups && self.gone.contains_key(&number)
    }

    /// Gives up what is in no tree any more, unless the kernel was handed it again.
    pub(crate) fn drop_gone(&mut self, number: u64) {
        if self.count(number).is_some_and(|count| count.load(Ordering::Relaxed) == 0) {
            self.gone.remove(&number);
        }
    }

    fn count(&self, number: u64) -> Option<&AtomicU64> {
        self.lookups.get(usize::try_from(number.checked_sub(1)?).ok()?)
    }

    /// Shows another tree.
    ///
    /// `before` has, for each node of the new tree, the node of the old one that it goes on from;
    /// no two go on from the same one.
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
