//! A tree as bytes: the format, and how it is written.
//!
//! ```text
//! stream    = "meshtree" version(1) attributes xattrs names
//! names     = (name node)* 0          by their bytes, each once
//! name      = len(1..=255) bytes
//! node      = kind [+ 0x10 when there are xattrs] (attributes xattrs content | path)
//! attributes = permissions uid gid modified_s modified_ns
//! xattrs    = nothing | count (len name len value)*    by name, each once
//! content   = names                   of a directory
//!           | count extent*           of a file
//!           | len bytes               the target of a symbolic link
//!           | number                  of a device
//!           | nothing                 of a fifo or socket
//! extent    = (len << 1) chunk | (len << 1 | 1) of a hole
//! path      = len bytes               from the root, of a file's first name, for its other ones
//! ```
//!
//! Numbers are varints, and seconds may be negative. Nothing says where something else stands, so
//! that a change of one file changes only the bytes about it: those on both sides are cut into the
//! chunks they were in before.

use crate::attributes::{Extent, Kind, Metadata};
use crate::varint::{fold, put};

pub(crate) const MAGIC: &[u8; 8] = b"meshtree";
pub(crate) const VERSION: u8 = 1;
/// The kind of a further name of a file.
pub(crate) const LINK: u8 = 8;
/// Added to a kind with extended attributes.
pub(crate) const WITH_XATTRS: u8 = 0x10;
/// Added to the length of an extent, twice, when it is a hole.
pub(crate) const HOLE: u64 = 1;

/// Kinds by their number in the format, which is one more than their place.
pub(crate) const KINDS: [Kind; 7] = [
    Kind::Directory,
    Kind::File,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

/// Extended attributes by their names.
pub(crate) type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Writes a tree, depth first. The caller keeps the order of names and closes each directory.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Begins with the root directory.
    pub(crate) fn new(root: &Metadata, xattrs: &Xattrs) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec() };
        writer.bytes.push(VERSION);
        writer.node(Kind::Directory, root, xattrs);
        writer
    }

    /// The name of what follows.
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.text(name);
    }

    /// What has that name. Of a directory, its names follow.
    pub(crate) fn node(&mut self, kind: Kind, metadata: &Metadata, xattrs: &Xattrs) {
        let flag = if xattrs.is_empty() { 0 } else { WITH_XATTRS };
        self.bytes.push(number_of(kind) | flag);
        put(&mut self.bytes, u64::from(metadata.permissions));
        put(&mut self.bytes, u64::from(metadata.uid));
        put(&mut self.bytes, u64::from(metadata.gid));
        put(&mut self.bytes, fold(metadata.modified.s));
        put(&mut self.bytes, u64::from(metadata.modified.ns));
        if !xattrs.is_empty() {
            put(&mut self.bytes, xattrs.len() as u64);
        }
        for (name, value) in xattrs {
            self.text(name);
            self.text(value);
        }
    }

    /// The content of a file.
    pub(crate) fn extents(&mut self, extents: &[Extent]) {
        put(&mut self.bytes, extents.len() as u64);
        let mut start = 0;
        for extent in extents {
            let len = extent.end - start;
            start = extent.end;
            match &extent.chunk {
                Some(chunk) => {
                    put(&mut self.bytes, len << 1);
                    self.bytes.extend_from_slice(&chunk.0);
                }
                None => put(&mut self.bytes, len << 1 | HOLE),
            }
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&mut self, target: &[u8]) {
        self.text(target);
    }

    /// The number of a device.
    pub(crate) fn device(&mut self, device: u64) {
        put(&mut self.bytes, device);
    }

    /// Instead of a node: another name of the file that has this path.
    pub(crate) fn link(&mut self, path: &[u8]) {
        self.bytes.push(LINK);
        self.text(path);
    }

    /// The last open directory has no more names.
    pub(crate) fn close(&mut self) {
        self.bytes.push(0);
    }

    /// How much was written.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn text(&mut self, text: &[u8]) {
        put(&mut self.bytes, text.len() as u64);
        self.bytes.extend_from_slice(text);
    }
}

fn number_of(kind: Kind) -> u8 {
    1 + KINDS.iter().position(|other| *other == kind).expect("all kinds are listed") as u8
}
