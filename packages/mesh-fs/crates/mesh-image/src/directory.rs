//! Directory blocks. Each block contains its entries, followed by their names.

use mesh_snapshot::{NodeId, Tree};

use crate::format::{BLOCK, ENTRY_LEN, entry_type};

/// Returns the names of a directory including `.` and `..`, sorted by their bytes.
fn names(tree: &Tree, directory: NodeId) -> impl Iterator<Item = (&[u8], NodeId)> {
    let mut own =
        [(&b"."[..], directory), (&b".."[..], tree.parent(directory))].into_iter().peekable();
    let mut others = tree.children(directory).peekable();
    std::iter::from_fn(move || match (own.peek(), others.peek()) {
        (Some((one, _)), Some((other, _))) if one < other => own.next(),
        (Some(_), None) => own.next(),
        _ => others.next(),
    })
}

/// Returns the length of the directory; all blocks except the last count as full.
pub(crate) fn size(tree: &Tree, directory: NodeId) -> u64 {
    let (mut before, mut len) = (0, 0);
    for (name, _) in names(tree, directory) {
        let more = (ENTRY_LEN + name.len()) as u64;
        if len + more > BLOCK {
            before += BLOCK;
            len = 0;
        }
        len += more;
    }
    before + len
}

/// Encodes the blocks. `number` returns the inode number of a node in the image.
pub(crate) fn encode(tree: &Tree, directory: NodeId, number: impl Fn(NodeId) -> u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = Vec::new();
    let mut len = 0;
    for (name, node) in names(tree, directory) {
        let more = ENTRY_LEN + name.len();
        if len + more > BLOCK as usize {
            put_block(&mut out, tree, &block, &number);
            out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
            block.clear();
            len = 0;
        }
        block.push((name, node));
        len += more;
    }
    put_block(&mut out, tree, &block, &number);
    out
}

fn put_block(
    out: &mut Vec<u8>,
    tree: &Tree,
    block: &[(&[u8], NodeId)],
    number: impl Fn(NodeId) -> u64,
) {
    let mut name_at = block.len() * ENTRY_LEN;
    for (name, node) in block {
        out.extend(number(*node).to_le_bytes());
        // The cast is lossless: a block has 4096 bytes.
        out.extend((name_at as u16).to_le_bytes());
        out.extend([entry_type(tree.attributes(*node).kind), 0]);
        name_at += name.len();
    }
    block.iter().for_each(|(name, _)| out.extend(*name));
}
