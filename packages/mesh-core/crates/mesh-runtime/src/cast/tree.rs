//! The tree of hosts along which a cast is forwarded.

use std::ops::Range;

/// A k-ary tree over the hosts of a cast, by their place in an order that all hosts agree on.
///
/// Place 0 is the root. The tree is a formula, not a list: every host computes its own place in it.
///
/// ```
/// use mesh_runtime::cast::Tree;
/// let tree = Tree::new(7, 2);
/// assert_eq!(tree.children(1), 3..5);
/// assert_eq!(tree.live_children(0, |host| host == 1), [3, 4, 2]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tree {
    count: usize,
    fanout: usize,
}

impl Tree {
    /// Creates a tree of `count` hosts in which a host forwards a cast to at most `fanout` others.
    ///
    /// # Panics
    /// If `fanout` is 0.
    pub fn new(count: usize, fanout: usize) -> Self {
        assert!(fanout > 0, "a tree needs a fanout");
        Self { count, fanout }
    }

    /// Returns the number of hosts in the tree.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the places directly below `place`.
    pub fn children(&self, place: usize) -> Range<usize> {
        let first = place.saturating_mul(self.fanout).saturating_add(1).min(self.count);
        let end = first.saturating_add(self.fanout).min(self.count);
        first..end
    }

    /// Returns the place directly above; `None` for the root.
    pub fn parent(&self, place: usize) -> Option<usize> {
        place.checked_sub(1).map(|before| before / self.fanout)
    }

    /// Returns the places to which `place` forwards a cast if some places are known to be dead.
    ///
    /// The children of a dead place take its position in the order. Hosts that disagree about which
    /// hosts are dead may both forward a cast to the same place, so this is only safe for a cast
    /// that was not sent yet.
    pub fn live_children(&self, place: usize, is_dead: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut live = Vec::new();
        let mut unseen: Vec<usize> = self.children(place).rev().collect();
        while let Some(next) = unseen.pop() {
            if is_dead(next) {
                unseen.extend(self.children(next).rev());
            } else {
                live.push(next);
            }
        }
        live
    }

    /// Whether a cast passes through `above` on its way to `place`, or ends there.
    pub fn is_under(&self, place: usize, above: usize) -> bool {
        let mut at = place;
        while at > above {
            at = (at - 1) / self.fanout;
        }
        at == above
    }

    /// Returns all places that a cast reaches through `place`, itself first, in tree order.
    pub fn subtree(&self, place: usize) -> impl Iterator<Item = usize> {
        let tree = *self;
        let mut level = place..(place + 1).min(tree.count);
        let mut next = level.clone();
        std::iter::from_fn(move || {
            if next.is_empty() && !level.is_empty() {
                // The places of one level below a place are consecutive.
                level = tree.children(level.start).start..tree.children(level.end - 1).end;
                next = level.clone();
            }
            next.next()
        })
    }
}
