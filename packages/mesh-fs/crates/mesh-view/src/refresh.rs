//! What the kernel must not keep of a tree when another one takes its place.

use mesh_snapshot::Change;

use crate::nodes::Nodes;

/// What was different in the tree that is shown now.
#[derive(Debug, Default)]
pub struct Refresh {
    /// What the kernel may have kept, and is no longer so.
    pub stale: Vec<Stale>,
}

/// One thing that the kernel may have kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stale {
    /// Attributes and contents.
    Node {
        /// What the kernel calls the node.
        number: u64,
    },
    /// What a name stands for, or that there is none.
    Name {
        /// What the kernel calls the directory.
        directory: u64,
        /// The name in it.
        name: Vec<u8>,
    },
}

/// Says what of the old tree is stale; `nodes` has its numbers still.
pub(crate) fn stale(nodes: &Nodes, changes: &[Change<'_>]) -> Refresh {
    let mut stale = Vec::new();
    for change in changes {
        match *change {
            Change::Added { parent, name, .. } | Change::Removed { parent, name, .. } => {
                let directory = nodes.number(parent);
                // Its modification time, and what it lists.
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
