//! Kernel caches to invalidate when one tree replaces another.

use mesh_snapshot::Change;

use crate::nodes::Nodes;

/// Result of replacing the current tree.
#[derive(Debug, Default)]
pub struct Refresh {
    /// Items that the kernel may have cached and that are not valid any more.
    pub stale: Vec<Stale>,
}

/// An item to invalidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Attributes and content of a node.
    Node {
        /// Inode number of the node.
        number: u64,
    },
    /// The entry of a name, including a cached negative lookup.
    Name {
        /// Inode number of the directory.
        directory: u64,
        /// The name.
        name: Vec<u8>,
    },
}

/// Lists the stale items of the old tree. `nodes` must still contain its numbers.
pub(crate) fn stale(nodes: &Nodes, changes: &[Change<'_>]) -> Refresh {
    let mut stale = Vec::new();
    for change in changes {
        match *change {
            Change::Added { parent, name, .. } | Change::Removed { parent, name, .. } => {
                let directory = nodes.number(parent);
                // The modification time and the listing of the directory.
                stale.push(Stale::Node { number: directory });
                stale.push(Stale::Name { directory, name: name.to_vec() });
            }
            Change::Replaced { parent, name, .. } => {
                stale.push(Stale::Name { directory: nodes.number(parent), name: name.to_vec() });
            }
            Change::Attributes { old, .. } => {
                stale.push(Stale::Node { number: nodes.number(old) });
            }
        }
    }
    Refresh { stale }
}
