//! Locations of everything of a tree in its image.

use mesh_snapshot::{Attributes, ChunkId, Extent, Kind, NodeId, Tree};

use crate::blocks::Blocks;
use crate::directory;
use crate::error::ImageError;
use crate::format::{BLOCK, INODE_ALIGNMENT, INODE_LEN, INODES_AT, Layout, MAP_ENTRY_LEN};
use crate::xattrs;

/// Maximum number of pieces of a file with holes, which limits its map. Longer files have longer
/// pieces.
const PIECES_MAX: u64 = 1 << 16;

/// Location of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Offset of the inode in the image.
    pub(crate) at: u64,
    pub(crate) xattrs_len: u32,
    pub(crate) layout: Layout,
    /// First block: in the data blocks for a file, otherwise in the image.
    pub(crate) start: u32,
    pub(crate) size: u64,
    /// Whether the content must still be written to the data blocks.
    pub(crate) is_new: bool,
}

impl Place {
    /// Offset of the data after the inode and its extended attributes.
    pub(crate) fn behind(&self) -> u64 {
        self.at + INODE_LEN + u64::from(self.xattrs_len)
    }
}

/// Locations of all nodes of a tree.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Indexed by node.
    pub(crate) places: Vec<Place>,
    /// Number of blocks of the image itself.
    pub(crate) blocks: u32,
    pub(crate) has_maps: bool,
}

/// Plans the image of a tree, and reserves data blocks for its files.
pub(crate) fn plan(tree: &Tree, files: &mut Blocks) -> Result<Plan, ImageError> {
    let mut plan = Plan { places: Vec::with_capacity(tree.len()), blocks: 0, has_maps: false };
    let mut end = INODES_AT;
    for node in nodes(tree) {
        let given = tree.attributes(node);
        let xattrs_len = xattrs::encode(tree.xattrs(node)).len() as u32;
        let size =
            if given.kind == Kind::Directory { directory::size(tree, node) } else { given.size };
        let layout = layout(tree.extents(node), &given, size, xattrs_len)?;
        let (start, is_new) = match given.kind {
            Kind::File => files.take(key(tree.extents(node), layout), count(tree, node, layout))?,
            _ => (0, false),
        };
        let at = fitting(end, xattrs_len, layout);
        let place = Place { at, xattrs_len, layout, start, size, is_new };
        end = (place.behind() + layout.behind_len()).next_multiple_of(INODE_ALIGNMENT);
        plan.has_maps |= matches!(layout, Layout::Mapped { .. });
        plan.places.push(place);
    }
    let mut next = end.div_ceil(BLOCK);
    for (node, place) in nodes(tree).zip(&mut plan.places) {
        if tree.attributes(node).kind != Kind::File && has_blocks(place.layout) {
            place.start = next as u32;
            next += u64::from(blocks_of(place.layout));
        }
    }
    plan.blocks = u32::try_from(next).map_err(|_| ImageError::TooLarge)?;
    let all = plan.blocks.checked_add(files.len());
    all.filter(|all| *all < u32::MAX).map(|_| plan).ok_or(ImageError::TooLarge)
}

/// Returns all nodes of a tree in the order of their inodes in the image.
pub(crate) fn nodes(tree: &Tree) -> impl Iterator<Item = NodeId> + use<> {
    // The cast is lossless: node ids have 32 bits.
    (0..tree.len() as u32).map(NodeId)
}

fn has_blocks(layout: Layout) -> bool {
    blocks_of(layout) > 0
}

fn blocks_of(layout: Layout) -> u32 {
    match layout {
        Layout::Plain { blocks } | Layout::Inline { blocks, .. } => blocks,
        Layout::Mapped { .. } => 0,
    }
}

/// Returns the layout of the data of a node.
fn layout(
    extents: &[Extent],
    given: &Attributes,
    size: u64,
    xattrs_len: u32,
) -> Result<Layout, ImageError> {
    if !matches!(given.kind, Kind::File | Kind::Directory | Kind::Symlink) {
        return Ok(Layout::Plain { blocks: 0 });
    }
    if extents.iter().any(|extent| extent.chunk.is_none()) {
        let mut piece_bits = 0;
        while size.div_ceil(BLOCK << piece_bits) > PIECES_MAX {
            piece_bits += 1;
        }
        let pieces = size.div_ceil(BLOCK << piece_bits) as u32;
        return Ok(Layout::Mapped { pieces, piece_bits });
    }
    let blocks = u32::try_from(size / BLOCK).map_err(|_| ImageError::TooLarge)?;
    let tail = size % BLOCK;
    let is_fitting = INODE_LEN + u64::from(xattrs_len) + tail <= BLOCK;
    // The kernel reads the target of a link from one place: inline, or from a separate block.
    Ok(match tail {
        0 => Layout::Plain { blocks },
        _ if is_fitting => Layout::Inline { blocks, tail: tail as u16 },
        _ => Layout::Plain { blocks: blocks + 1 },
    })
}

/// Returns the first valid offset from `end` on for an inode.
///
/// The inode itself must not cross a block boundary, nor must an inode with its inline tail.
fn fitting(end: u64, xattrs_len: u32, layout: Layout) -> u64 {
    let len = match layout {
        Layout::Inline { tail, .. } => INODE_LEN + u64::from(xattrs_len) + u64::from(tail),
        Layout::Plain { .. } | Layout::Mapped { .. } => INODE_LEN,
    };
    if end % BLOCK + len > BLOCK { end.next_multiple_of(BLOCK) } else { end }
}

/// Returns the number of data blocks of a file.
fn count(tree: &Tree, file: NodeId, layout: Layout) -> u64 {
    let Layout::Mapped { .. } = layout else { return u64::from(blocks_of(layout)) };
    let size = tree.attributes(file).size;
    let pieces = pieces(tree.extents(file), size, layout);
    pieces.into_iter().filter(|piece| piece.has_bytes).map(|piece| piece.blocks).sum()
}

/// A piece of a file with holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Whether any part of it is not in a hole.
    pub(crate) has_bytes: bool,
    pub(crate) blocks: u64,
}

/// Returns the pieces of a file with holes; empty for other files.
pub(crate) fn pieces(extents: &[Extent], size: u64, layout: Layout) -> Vec<Piece> {
    let Layout::Mapped { pieces, piece_bits } = layout else { return Vec::new() };
    let len = BLOCK << piece_bits;
    let piece =
        |nth: u64| Piece { has_bytes: false, blocks: (size - nth * len).min(len).div_ceil(BLOCK) };
    let mut found: Vec<_> = (0..u64::from(pieces)).map(piece).collect();
    let mut start = 0;
    for Extent { end, chunk } in extents {
        if chunk.is_some() {
            let (first, last) = (start / len, end.div_ceil(len));
            found[first as usize..last as usize]
                .iter_mut()
                .for_each(|piece| piece.has_bytes = true);
        }
        start = *end;
    }
    found
}

/// Returns the key of a file's data blocks, a hash of its content and layout.
fn key(extents: &[Extent], layout: Layout) -> ChunkId {
    let (kind, count) = match layout {
        Layout::Plain { blocks } | Layout::Inline { blocks, .. } => (0_u8, blocks),
        Layout::Mapped { pieces, .. } => (1, pieces),
    };
    let mut bytes = vec![kind];
    bytes.extend(count.to_le_bytes());
    for Extent { end, chunk } in extents {
        bytes.extend(end.to_le_bytes());
        bytes.extend(chunk.map_or([0; 32], |chunk| chunk.0));
    }
    ChunkId::of(&bytes)
}

// The map starts directly after the extended attributes, so this offset must be aligned.
const _: () = assert!(INODE_LEN.is_multiple_of(MAP_ENTRY_LEN));
