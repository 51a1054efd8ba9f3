//! Constants and on-disk structures of erofs.
//!
//! All numbers are little-endian. The number of an inode is its offset in the image divided by 32.

use mesh_snapshot::{Attributes, Kind};

/// Size of a block in bytes.
pub(crate) const BLOCK: u64 = 4096;
/// Offset of the superblock.
pub(crate) const SUPERBLOCK_AT: usize = 1024;
/// Offset of the only slot of the device table, after the superblock.
const DEVICE_SLOT_AT: usize = SUPERBLOCK_AT + 128;
/// Offset of the first inode, after that slot.
pub(crate) const INODES_AT: u64 = DEVICE_SLOT_AT as u64 + DEVICE_SLOT_LEN as u64;
/// Alignment of inodes in bytes.
pub(crate) const INODE_ALIGNMENT: u64 = 32;
/// Length of an extended inode in bytes, which has timestamps in nanoseconds.
pub(crate) const INODE_LEN: u64 = 64;
/// Length of a directory entry without its name, in bytes.
pub(crate) const ENTRY_LEN: usize = 12;
/// Length of an entry in the map of a file with holes, in bytes.
pub(crate) const MAP_ENTRY_LEN: u64 = 4;
/// Map entry of a hole.
pub(crate) const HOLE: u32 = u32::MAX;

const MAGIC: u32 = 0xe0f5_e1e2;
const DEVICE_SLOT_LEN: usize = 128;
const CHUNKED_FILES: u32 = 0x4;
const DEVICE_TABLE: u32 = 0x8;

/// Location of the data of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// In contiguous blocks.
    Plain {
        /// Number of blocks.
        blocks: u32,
    },
    /// In contiguous blocks, with the tail after the inode in the same block as the inode.
    Inline {
        /// Number of blocks.
        blocks: u32,
        /// Length of the tail in bytes.
        tail: u16,
    },
    /// In pieces, whose first blocks are listed in a map after the inode.
    Mapped {
        /// Number of pieces.
        pieces: u32,
        /// Binary logarithm of the number of blocks in a piece.
        piece_bits: u8,
    },
}

impl Layout {
    /// Number of bytes after the inode and its extended attributes.
    pub(crate) fn behind_len(self) -> u64 {
        match self {
            Self::Plain { .. } => 0,
            Self::Inline { tail, .. } => u64::from(tail),
            Self::Mapped { pieces, .. } => u64::from(pieces) * MAP_ENTRY_LEN,
        }
    }

    fn number(self) -> u16 {
        match self {
            Self::Plain { .. } => 0,
            Self::Inline { .. } => 2,
            Self::Mapped { .. } => 4,
        }
    }
}

/// Fields of an inode that are not attributes of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) layout: Layout,
    /// First block.
    pub(crate) start: u32,
    /// Encoded length for a directory, otherwise the size of the node.
    pub(crate) size: u64,
    /// Length of the extended attributes with their header, in bytes.
    pub(crate) xattrs_len: u32,
    /// Inode number for systems with 32-bit inode numbers.
    pub(crate) number: u32,
}

/// Encodes an inode.
pub(crate) fn inode(out: &mut Vec<u8>, inode: &Inode, given: &Attributes) {
    // Bit 0 marks an extended inode of 64 bytes; the layout follows.
    put16(out, 1 | inode.layout.number() << 1);
    put16(out, xattr_count(inode.xattrs_len));
    put16(out, file_type(given.kind) | given.permissions);
    put16(out, 0);
    out.extend(inode.size.to_le_bytes());
    let special = matches!(given.kind, Kind::CharDevice | Kind::BlockDevice);
    put32(
        out,
        match inode.layout {
            _ if special => device(given.device),
            Layout::Mapped { piece_bits, .. } => u32::from(piece_bits),
            Layout::Plain { .. } | Layout::Inline { .. } => inode.start,
        },
    );
    put32(out, inode.number);
    put32(out, given.uid);
    put32(out, given.gid);
    out.extend(given.modified_s.to_le_bytes());
    put32(out, given.modified_ns);
    put32(out, given.links);
    out.extend([0; 16]);
}

/// Encodes the length of extended attributes: 0, or the number of words after the header plus 1.
fn xattr_count(len: u32) -> u16 {
    if len == 0 { 0 } else { ((len - 12) / 4 + 1) as u16 }
}

/// Maximum length of the extended attributes of an inode in bytes, including the header.
pub(crate) const XATTRS_LEN_MAX: usize = 12 + 4 * (u16::MAX as usize - 1);

fn file_type(kind: Kind) -> u16 {
    match kind {
        Kind::Fifo => 0o010_000,
        Kind::CharDevice => 0o020_000,
        Kind::Directory => 0o040_000,
        Kind::BlockDevice => 0o060_000,
        Kind::File => 0o100_000,
        Kind::Symlink => 0o120_000,
        Kind::Socket => 0o140_000,
    }
}

/// Encodes the kind in a directory entry.
pub(crate) fn entry_type(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::CharDevice => 3,
        Kind::BlockDevice => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink => 7,
    }
}

/// Encodes a device number in the kernel's 32 bits.
fn device(number: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}

/// Fields of the superblock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superblock {
    pub(crate) root: u16,
    pub(crate) inodes: u64,
    /// Number of blocks of the image itself. The data blocks of files follow them.
    pub(crate) blocks: u32,
    /// Number of data blocks in the second file, which does not exist if the number is 0.
    pub(crate) file_blocks: u32,
    pub(crate) has_maps: bool,
}

/// Encodes the image up to the first inode.
pub(crate) fn head(superblock: &Superblock) -> Vec<u8> {
    let mut out = vec![0; SUPERBLOCK_AT];
    let has_device = superblock.file_blocks > 0;
    put32(&mut out, MAGIC);
    // No checksum and no compatible features.
    out.extend([0; 8]);
    out.push(BLOCK.trailing_zeros() as u8);
    out.push(0);
    put16(&mut out, superblock.root);
    out.extend(superblock.inodes.to_le_bytes());
    // Timestamp of compact inodes, which the image does not contain.
    out.extend([0; 12]);
    put32(&mut out, superblock.blocks);
    // Inodes and shared attributes are addressed from the start of the image.
    out.extend([0; 8]);
    // No UUID: overlayfs would otherwise rely on the inode numbers of this file system, which
    // differ in the next image.
    out.extend([0; 16]);
    out.extend(*b"mesh\0\0\0\0\0\0\0\0\0\0\0\0");
    let chunked = if superblock.has_maps { CHUNKED_FILES } else { 0 };
    put32(&mut out, chunked | if has_device { DEVICE_TABLE } else { 0 });
    put16(&mut out, 0);
    put16(&mut out, u16::from(has_device));
    put16(&mut out, (DEVICE_SLOT_AT / DEVICE_SLOT_LEN) as u16);
    out.resize(DEVICE_SLOT_AT, 0);
    if has_device {
        out.extend([0; 64]);
        put32(&mut out, superblock.file_blocks);
        put32(&mut out, superblock.blocks);
    }
    out.resize(INODES_AT as usize, 0);
    out
}

fn put16(out: &mut Vec<u8>, number: u16) {
    out.extend(number.to_le_bytes());
}

/// Appends a 32-bit number.
pub(crate) fn put32(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}
