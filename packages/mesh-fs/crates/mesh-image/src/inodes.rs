//! The image without the content of files: superblock, inodes, directories, links.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use mesh_snapshot::{Kind, NodeId, Tree};

use crate::directory;
use crate::format::{self, BLOCK, HOLE, INODE_ALIGNMENT, Inode, Layout, Superblock};
use crate::plan::{Place, Plan, nodes, pieces};
use crate::xattrs;

/// Number of bytes that are written at once.
const PORTION: usize = 1 << 20;

/// Writes the image. The inline tails of files are left zero.
pub(crate) fn write(image: &File, tree: &Tree, plan: &Plan, file_blocks: u32) -> io::Result<()> {
    let superblock = Superblock {
        // The root is the first inode, so its number fits into 16 bits.
        root: number(&plan.places[0]) as u16,
        inodes: tree.len() as u64,
        blocks: plan.blocks,
        file_blocks,
        has_maps: plan.has_maps,
    };
    let mut out = Sequel { image, written: 0, pending: format::head(&superblock) };
    for (node, place) in nodes(tree).zip(&plan.places) {
        out.advance(place.at)?;
        put_inode(&mut out.pending, tree, plan, node);
    }
    for (node, place) in nodes(tree).zip(&plan.places) {
        let bytes = own_bytes(tree, plan, node);
        // The tail of a file is also file content and is written elsewhere.
        let end = bytes.len().saturating_sub(tail_len(place));
        if end > 0 {
            out.advance(u64::from(place.start) * BLOCK)?;
            out.pending.extend(&bytes[..end]);
        }
    }
    out.advance(u64::from(plan.blocks) * BLOCK)?;
    out.flush()
}

/// Returns the inode number of a node in the image.
fn number(place: &Place) -> u64 {
    place.at / INODE_ALIGNMENT
}

fn tail_len(place: &Place) -> usize {
    if let Layout::Inline { tail, .. } = place.layout { usize::from(tail) } else { 0 }
}

fn put_inode(out: &mut Vec<u8>, tree: &Tree, plan: &Plan, node: NodeId) {
    let place = &plan.places[node.0 as usize];
    let given = tree.attributes(node);
    // Data blocks of files follow the blocks of the image.
    let before = if given.kind == Kind::File { plan.blocks } else { 0 };
    let inode = Inode {
        layout: place.layout,
        start: before + place.start,
        size: place.size,
        xattrs_len: place.xattrs_len,
        number: node.0 + 1,
    };
    format::inode(out, &inode, &given);
    out.extend(xattrs::encode(tree.xattrs(node)));
    let mut next = inode.start;
    for piece in pieces(tree.extents(node), place.size, place.layout) {
        format::put32(out, if piece.has_bytes { next } else { HOLE });
        // The plan has verified that block numbers fit into 32 bits.
        next += if piece.has_bytes { piece.blocks as u32 } else { 0 };
    }
    let bytes = own_bytes(tree, plan, node);
    out.extend(&bytes[bytes.len() - tail_len(place).min(bytes.len())..]);
}

/// Returns the data of a node that is contained in the description of the tree.
fn own_bytes(tree: &Tree, plan: &Plan, node: NodeId) -> Vec<u8> {
    match tree.attributes(node).kind {
        Kind::Directory => {
            directory::encode(tree, node, |node| number(&plan.places[node.0 as usize]))
        }
        Kind::Symlink => tree.target(node).to_vec(),
        _ => Vec::new(),
    }
}

/// Buffered sequential output.
struct Sequel<'a> {
    image: &'a File,
    written: u64,
    pending: Vec<u8>,
}

impl Sequel<'_> {
    /// Advances to an offset of the image, and fills the gap with zeros.
    fn advance(&mut self, to: u64) -> io::Result<()> {
        let gap = to - (self.written + self.pending.len() as u64);
        self.pending.resize(self.pending.len() + gap as usize, 0);
        if self.pending.len() >= PORTION { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.image.write_all_at(&self.pending, self.written)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
