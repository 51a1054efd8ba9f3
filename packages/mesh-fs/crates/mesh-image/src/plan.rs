//! Where everything of a tree lies in its image.

use mesh_snapshot::{Attributes, ChunkId, Extent, Kind, NodeId, Tree};

use crate::blocks::Blocks;
use crate::directory;
use crate::error::ImageError;
use crate::format::{BLOCK, INODE_ALIGNMENT, INODE_LEN, INODES_AT, Layout, MAP_ENTRY_LEN};
use crate::xattrs;

/// How many pieces a file with holes has at most, so that its map stays short: longer files have
/// longer pieces.
const PIECES_MAX: u64 = 1 << 16;

/// Where one node lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The byte of its inode in the image.
    pub(crate) at: u64,
    pub(crate) xattrs_len: u32,
    pub(crate) layout: Layout,
    /// The first of its blocks: among those of files for a file, else in the image.
    pub(crate) start: u32,
    pub(crate) size: u64,
    /// Whether the blocks of files do not have its bytes yet.
    pub(crate) is_new: bool,
}

impl Place {
    /// Where that is which lies behind its inode and extended attributes.
    pub(crate) fn behind(&self) -> u64 {
        self.at + INODE_LEN + u64::from(self.xattrs_len)
    }
}

/// Where all of a tree lies.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By node.
    pub(crate) places: Vec<Place>,
    /// Blocks of the image itself.
    pub(crate) blocks: u32,
    pub(crate) has_maps: bool,
}

/// Finds a place for everything; what files need is taken from their blocks.
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

/// All nodes of a tree, in the order in which they lie in the image.
pub(crate) fn nodes(tree: &Tree) -> impl Iterator<Item = NodeId> + use<> {
    // A tree has fewer nodes than that.
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

/// How the bytes of a node are laid out.
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
    // A link is read in one go, from behind its inode or from a block of its own.
    Ok(match tail {
        0 => Layout::Plain { blocks },
        _ if is_fitting => Layout::Inline { blocks, tail: tail as u16 },
        _ => Layout::Plain { blocks: blocks + 1 },
    })
}

/// The first place from `end` on where an inode may be: its beginning is in one block, and so is
/// all of it where bytes lie behind it.
fn fitting(end: u64, xattrs_len: u32, layout: Layout) -> u64 {
    let len = match layout {
        Layout::Inline { tail, .. } => INODE_LEN + u64::from(xattrs_len) + u64::from(tail),
        Layout::Plain { .. } | Layout::Mapped { .. } => INODE_LEN,
    };
    if end % BLOCK + len > BLOCK { end.next_multiple_of(BLOCK) } else { end }
}

/// How many blocks of files a file takes.
fn count(tree: &Tree, file: NodeId, layout: Layout) -> u64 {
    let Layout::Mapped { .. } = layout else { return u64::from(blocks_of(layout)) };
    let size = tree.attributes(file).size;
    let pieces = pieces(tree.extents(file), size, layout);
    pieces.into_iter().filter(|piece| piece.has_bytes).map(|piece| piece.blocks).sum()
}

/// A part of a file with holes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// Whether any of it is not in a hole.
    pub(crate) has_bytes: bool,
    pub(crate) blocks: u64,
}

/// The pieces of a file with holes; none for others.
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

/// What the blocks of a file are known by: its bytes, and how they are laid out.
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

// What lies behind an inode is a whole number of these, so that a map is where it is looked for.
const _: () = assert!(INODE_LEN.is_multiple_of(MAP_ENTRY_LEN));
