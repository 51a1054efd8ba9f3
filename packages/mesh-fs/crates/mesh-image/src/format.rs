//! The numbers and records of erofs, as the kernel reads them from the image.
//!
//! All is little-endian. An inode is known by where it is: its byte in the image, divided by 32.

use mesh_snapshot::{Attributes, Kind};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Where the superblock is.
pub(crate) const SUPERBLOCK_AT: usize = 1024;
/// Where the one slot of the table of further devices is: behind the superblock.
const DEVICE_SLOT_AT: usize = SUPERBLOCK_AT + 128;
/// Where the inodes begin: behind that slot.
pub(crate) const INODES_AT: u64 = DEVICE_SLOT_AT as u64 + DEVICE_SLOT_LEN as u64;
/// Inodes lie at multiples of this.
pub(crate) const INODE_ALIGNMENT: u64 = 32;
/// Bytes of an inode with times to the nanosecond.
pub(crate) const INODE_LEN: u64 = 64;
/// Bytes of an entry of a directory, without its name.
pub(crate) const ENTRY_LEN: usize = 12;
/// Bytes of an entry in the map of a file with holes.
pub(crate) const MAP_ENTRY_LEN: u64 = 4;
/// What the map of such a file has for a hole.
pub(crate) const HOLE: u32 = u32::MAX;

const MAGIC: u32 = 0xe0f5_e1e2;
const DEVICE_SLOT_LEN: usize = 128;
const CHUNKED_FILES: u32 = 0x4;
const DEVICE_TABLE: u32 = 0x8;

/// Where the bytes of an inode are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// In blocks one behind the other.
    Plain {
        /// How many.
        blocks: u32,
    },
    /// In such blocks, and the rest behind the inode, in the same block as that.
    Inline {
        /// How many.
        blocks: u32,
        /// Bytes of the rest.
        tail: u16,
    },
    /// In pieces, whose first blocks are in a map behind the inode.
    Mapped {
        /// How many pieces there are.
        pieces: u32,
        /// Each has two to the power of this blocks.
        piece_bits: u8,
    },
}

impl Layout {
    /// Bytes behind the inode and its extended attributes.
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

/// What an inode says besides the attributes of its node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) layout: Layout,
    /// The first of its blocks.
    pub(crate) start: u32,
    /// Of a directory its own, else that of the node.
    pub(crate) size: u64,
    /// Bytes of its extended attributes with their header.
    pub(crate) xattrs_len: u32,
    /// For systems whose numbers of inodes have 32 bits.
    pub(crate) number: u32,
}

/// Writes an inode.
pub(crate) fn inode(out: &mut Vec<u8>, inode: &Inode, given: &Attributes) {
    // Bit 0: with 64 bytes; then where the bytes are.
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

/// What an inode says of the length of its extended attributes: nothing, or the header and so many
/// words, less one.
fn xattr_count(len: u32) -> u16 {
    if len == 0 { 0 } else { ((len - 12) / 4 + 1) as u16 }
}

/// The longest extended attributes that an inode can have, header included.
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

/// What an entry of a directory has for a kind.
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

/// The number of a device, in the kernel's 32 bits.
fn device(number: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    (minor & 0xff) | major << 8 | (minor & !0xff) << 12
}

/// What the superblock says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superblock {
    pub(crate) root: u16,
    pub(crate) inodes: u64,
    /// Blocks of the image itself; those of files come behind them.
    pub(crate) blocks: u32,
    /// Blocks of files, in a second file; without any, there is no such file.
    pub(crate) file_blocks: u32,
    pub(crate) has_maps: bool,
}

/// Writes the image up to the first inode.
pub(crate) fn head(superblock: &Superblock) -> Vec<u8> {
    let mut out = vec![0; SUPERBLOCK_AT];
    let has_device = superblock.file_blocks > 0;
    put32(&mut out, MAGIC);
    // Neither a checksum of it nor any feature that old kernels may leave out.
    out.extend([0; 8]);
    out.push(BLOCK.trailing_zeros() as u8);
    out.push(0);
    put16(&mut out, superblock.root);
    out.extend(superblock.inodes.to_le_bytes());
    // The time of inodes without a time of their own, of which there are none.
    out.extend([0; 12]);
    put32(&mut out, superblock.blocks);
    // Inodes and shared attributes are counted from the beginning of the image.
    out.extend([0; 8]);
    // Without a name of its own: an overlay over one with a name goes by its numbers of inodes,
    // which are others in the next image.
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

/// Writes a number of 32 bits.
pub(crate) fn put32(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}
