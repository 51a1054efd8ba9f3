//! Snapshots of folders, in one binary that is linked once.

mod compare;
mod decode;
mod edits;
mod ignored;
mod kinds;
mod ledger;
mod read;
mod test_tree;
