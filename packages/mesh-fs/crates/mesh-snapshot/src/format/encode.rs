//! Serialization of a tree.
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
//! Numbers are varints, and seconds are signed. The format contains no offsets. A change of one
//! file therefore only changes the bytes that describe this file, and the bytes before and after it
//! are split into the same chunks as previously.

use crate::format::varint::{fold, put};
use crate::tree::attributes::{Extent, Kind, Metadata};

pub(crate) const MAGIC: &[u8; 8] = b"meshtree";
pub(crate) const VERSION: u8 = 1;
/// Kind of an additional name of a file.
pub(crate) const LINK: u8 = 8;
/// Flag in the kind of a node with extended attributes.
pub(crate) const WITH_XATTRS: u8 = 0x10;
/// Flag in the length field of an extent that is a hole.
pub(crate) const HOLE: u64 = 1;

/// Kinds in the order of their numbers in the format, which start at 1.
pub(crate) const KINDS: [Kind; 7] = [
    Kind::Directory,
    Kind::File,
    Kind::Symlink,
    Kind::Fifo,
    Kind::Socket,
    Kind::CharDevice,
    Kind::BlockDevice,
];

/// Extended attributes: names and values.
pub(crate) type Xattrs = Vec<(Box<[u8]>, Box<[u8]>)>;

/// Writes a tree in depth-first order. The caller sorts names and closes each directory.
#[derive(Debug)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Starts with the root directory.
    pub(crate) fn new(root: &Metadata, xattrs: &Xattrs) -> Self {
        let mut writer = Self { bytes: MAGIC.to_vec() };
        writer.bytes.push(VERSION);
        writer.node(Kind::Directory, root, xattrs);
        writer
    }

    /// Writes the name of the node or link that follows.
    pub(crate) fn name(&mut self, name: &[u8]) {
        self.text(name);
    }

    /// Writes the node of the preceding name. The entries of a directory follow.
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

    /// Writes the content of a file.
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

    /// Writes the target of a symbolic link.
    pub(crate) fn target(&mut self, target: &[u8]) {
        self.text(target);
    }

    /// Writes the number of a device.
    pub(crate) fn device(&mut self, device: u64) {
        put(&mut self.bytes, device);
    }

    /// Writes, instead of a node, an additional name of the file with this path.
    pub(crate) fn link(&mut self, path: &[u8]) {
        self.bytes.push(LINK);
        self.text(path);
    }

    /// Ends the innermost open directory.
    pub(crate) fn close(&mut self) {
        self.bytes.push(0);
    }

    /// Number of bytes written.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use crate::tree::attributes::{NodeId, Timestamp};
    use mesh_chunks::ChunkId;

    /// A directory with one node of each kind.
    fn golden() -> Vec<u8> {
        let mut golden = b"meshtree\x01".to_vec();
        // The root: permissions 0755, user 1000, group 0, one second before the epoch.
        golden.extend(b"\x01\xed\x03\xe8\x07\x00\x01\x00");
        // A file with a chunk of 300 bytes, a hole of 4096, and an extended attribute.
        golden.extend(b"\x01a\x12\xa4\x03\x00\x00\x02\x05\x01\x06user.x\x02hi");
        golden.extend(b"\x02\xd8\x04");
        golden.extend([0xab; 32]);
        golden.extend(b"\x81\x40");
        // A directory with another name of that file.
        golden.extend(b"\x01b\x01\xed\x03\x00\x00\x00\x00\x01c\x08\x01a\x00");
        golden.extend(b"\x01d\x03\xff\x03\x00\x00\x00\x00\x04/tmp");
        golden.extend(b"\x01e\x04\x00\x00\x00\x00\x00");
        golden.extend(b"\x01f\x05\x00\x00\x00\x00\x00");
        golden.extend(b"\x01g\x06\x00\x00\x00\x00\x00\x83\x02");
        golden.extend(b"\x01h\x07\x00\x00\x00\x00\x00\x07");
        golden.push(0);
        golden
    }

    fn written() -> Vec<u8> {
        let none = Xattrs::new();
        let plain = |permissions| Metadata { permissions, ..Metadata::default() };
        let modified = Timestamp { s: -1, ns: 0 };
        let root = Metadata { permissions: 0o755, uid: 1000, gid: 0, modified };
        let mut writer = Writer::new(&root, &none);
        writer.name(b"a");
        let modified = Timestamp { s: 1, ns: 5 };
        let file = Metadata { permissions: 0o644, uid: 0, gid: 0, modified };
        writer.node(Kind::File, &file, &vec![((*b"user.x").into(), (*b"hi").into())]);
        writer.extents(&[
            Extent { end: 300, chunk: Some(ChunkId([0xab; 32])) },
            Extent { end: 300 + 4096, chunk: None },
        ]);
        writer.name(b"b");
        writer.node(Kind::Directory, &plain(0o755), &none);
        writer.name(b"c");
        writer.link(b"a");
        writer.close();
        writer.name(b"d");
        writer.node(Kind::Symlink, &plain(0o777), &none);
        writer.target(b"/tmp");
        for (name, kind, device) in [
            (b"e", Kind::Fifo, None),
            (b"f", Kind::Socket, None),
            (b"g", Kind::CharDevice, Some(0x103)),
            (b"h", Kind::BlockDevice, Some(7)),
        ] {
            writer.name(name);
            writer.node(kind, &plain(0), &none);
            device.into_iter().for_each(|device| writer.device(device));
        }
        writer.close();
        writer.finish()
    }

    #[test]
    fn the_encoding_is_stable() {
        assert_eq!(written(), golden());
    }

    #[test]
    fn the_golden_encoding_is_decoded() {
        let tree = Tree::decode(&golden()).expect("it is good");
        assert_eq!(tree.len(), 8);
        let file = tree.lookup(Tree::ROOT, b"a").expect("it is there");
        assert_eq!(file, NodeId(1));
        assert_eq!(tree.lookup(NodeId(2), b"c"), Some(file));
        let attributes = tree.attributes(file);
        assert_eq!((attributes.size, attributes.stored, attributes.links), (4396, 300, 2));
        assert_eq!((attributes.modified_s, attributes.modified_ns), (1, 5));
        assert_eq!(tree.xattrs(file).collect::<Vec<_>>(), [(&b"user.x"[..], &b"hi"[..])]);
        assert_eq!(tree.target(NodeId(3)), b"/tmp");
        let kinds = tree.children(Tree::ROOT).map(|(_, node)| tree.attributes(node).kind);
        let [directory, others @ ..] = KINDS;
        let all = [&[others[0], directory], &others[1..]].concat();
        assert_eq!(kinds.collect::<Vec<_>>(), all);
        assert_eq!(tree.attributes(NodeId(6)).device, 0x103);
        assert_eq!(tree.attributes(Tree::ROOT).links, 3);
        assert_eq!(tree.attributes(Tree::ROOT).modified_s, -1);
        assert_eq!(tree.chunks().collect::<Vec<_>>(), [(ChunkId([0xab; 32]), 300)]);
    }

    #[test]
    fn truncated_and_extended_encodings_are_refused() {
        let golden = golden();
        for len in 0..golden.len() {
            assert!(Tree::decode(&golden[..len]).is_err(), "{len}");
        }
        assert!(Tree::decode(&[&golden[..], b"\0"].concat()).is_err());
    }
}
