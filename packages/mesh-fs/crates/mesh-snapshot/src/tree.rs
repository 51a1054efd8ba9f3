//! A tree in memory: small, and quick to ask.

pub(crate) mod attributes;
pub(crate) mod compare;
pub(crate) mod name;
pub(crate) mod privilege;

use crate::tree::attributes::{Attributes, Extent, Kind, Metadata, Moment, NodeId, Totals};
use mesh_chunks::ChunkId;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// What the kernel and others expect to be the size of a directory.
const DIRECTORY_SIZE: u64 = 4096;
/// Files of this size and more come behind all others in [`Tree::chunks`].
const BIG: u64 = 1 << 20;

/// Directories, files and the rest, as they were at one moment.
///
/// Numbers of nodes follow the order of a walk that looks at names by their bytes and into each
/// directory at once. A file with several names is one node. What is asked about a node of another
/// tree has no meaning, and may panic.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Names of each directory side by side, sorted.
    pub(crate) entries: Vec<Entry>,
    /// Names behind a byte with their length, targets, and extended attributes.
    pub(crate) text: Vec<u8>,
    pub(crate) extents: Vec<Extent>,
    /// By node.
    pub(crate) xattrs: Vec<Xattr>,
}

/// A node, without its names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) kind: Kind,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u32,
    pub(crate) modified_ns: u32,
    pub(crate) modified_s: i64,
    pub(crate) size: u64,
    /// Bytes in chunks of a file; the number of a device.
    pub(crate) stored_or_device: u64,
}

/// What a node leads to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Some of the entries, and the directory that has this one.
    Directory {
        start: u32,
        end: u32,
        parent: u32,
    },
    /// Some of the extents.
    File {
        start: u32,
        end: u32,
    },
    /// A part of the text.
    Symlink {
        start: u32,
        end: u32,
    },
    Nothing,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Where the name is in the text.
    pub(crate) name: u32,
    pub(crate) node: u32,
}

/// An extended attribute: its name is in the text, and its value behind that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xattr {
    pub(crate) node: u32,
    pub(crate) start: u32,
    pub(crate) name_len: u32,
    pub(crate) value_len: u32,
}

impl Node {
    pub(crate) fn new(kind: Kind, metadata: &Metadata, body: Body) -> Self {
        let Metadata { permissions, uid, gid, modified: Moment { s, ns } } = *metadata;
        let (links, size) = if kind == Kind::Directory { (2, DIRECTORY_SIZE) } else { (1, 0) };
        Self {
            body,
            kind,
            permissions,
            uid,
            gid,
            links,
            modified_ns: ns,
            modified_s: s,
            size,
            stored_or_device: 0,
        }
    }
}

impl Tree {
    /// The directory that was taken.
    pub const ROOT: NodeId = NodeId(0);

    /// How many nodes there are: they are numbered from 0 to this.
    #[expect(clippy::len_without_is_empty, reason = "there is always a root")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// What the file system says of a node.
    pub fn attributes(&self, node: NodeId) -> Attributes {
        let node = self.node(node);
        let is_file = node.kind == Kind::File;
        Attributes {
            kind: node.kind,
            permissions: node.permissions,
            uid: node.uid,
            gid: node.gid,
            size: node.size,
            modified_s: node.modified_s,
            modified_ns: node.modified_ns,
            links: node.links,
            device: if is_file { 0 } else { node.stored_or_device },
            stored: if is_file { node.stored_or_device } else { 0 },
        }
    }

    /// The node of a name in a directory; none for what is no directory.
    pub fn lookup(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let entries = self.entries(directory);
        let found = entries.binary_search_by(|entry| self.name(entry.name).cmp(name));
        found.ok().map(|nth| NodeId(entries[nth].node))
    }

    /// The names in a directory and their nodes, sorted by the bytes of the names.
    pub fn children(
        &self,
        directory: NodeId,
    ) -> impl ExactSizeIterator<Item = (&[u8], NodeId)> + DoubleEndedIterator {
        self.entries(directory).iter().map(|entry| (self.name(entry.name), NodeId(entry.node)))
    }

    /// One of these, counted from 0.
    pub fn child(&self, directory: NodeId, nth: usize) -> Option<(&[u8], NodeId)> {
        let entry = self.entries(directory).get(nth)?;
        Some((self.name(entry.name), NodeId(entry.node)))
    }

    /// The directory that a directory is in. The root is in itself, as is what is no directory.
    pub fn parent(&self, directory: NodeId) -> NodeId {
        match self.node(directory).body {
            Body::Directory { parent, .. } => NodeId(parent),
            _ => directory,
        }
    }

    /// The pieces of a file, in their order, without gaps; the last ends at its size.
    pub fn extents(&self, file: NodeId) -> &[Extent] {
        self.extents_of(self.node(file))
    }

    /// Where a symbolic link leads; nothing for others.
    pub fn target(&self, link: NodeId) -> &[u8] {
        match self.node(link).body {
            Body::Symlink { start, end } => &self.text[range(start, end)],
            _ => &[],
        }
    }

    /// The extended attributes of a node and their values, sorted by name.
    pub fn xattrs(&self, node: NodeId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = self.xattrs.partition_point(|xattr| xattr.node < node.0);
        let of_node = self.xattrs[first..].iter().take_while(move |xattr| xattr.node == node.0);
        of_node.map(|xattr| {
            let (start, middle) = (xattr.start, xattr.start + xattr.name_len);
            let end = middle + xattr.value_len;
            (&self.text[range(start, middle)], &self.text[range(middle, end)])
        })
    }

    /// All chunks of all files and their lengths, each once: first those of files below 1 MiB, in
    /// the order of the tree, then those of the others.
    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, u32)> {
        let mut seen = HashSet::new();
        let of_files = |is_big: bool| {
            let files = self.nodes.iter().filter(move |node| (node.size >= BIG) == is_big);
            files.flat_map(|node| lengths(self.extents_of(node)))
        };
        of_files(false).chain(of_files(true)).filter(move |(chunk, _)| seen.insert(*chunk))
    }

    /// How much there is.
    pub fn totals(&self) -> Totals {
        let files = self.nodes.iter().filter(|node| node.kind == Kind::File);
        let (files, bytes) =
            files.fold((0, 0_u64), |(n, sum), node| (n + 1, sum.saturating_add(node.size)));
        Totals {
            entries: self.entries.len() as u64,
            files,
            bytes,
            stored: self.chunks().map(|(_, len)| u64::from(len)).sum(),
        }
    }

    pub(crate) fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.0 as usize]
    }

    fn extents_of(&self, node: &Node) -> &[Extent] {
        match node.body {
            Body::File { start, end } => &self.extents[range(start, end)],
            _ => &[],
        }
    }

    pub(crate) fn entries(&self, directory: NodeId) -> &[Entry] {
        match self.node(directory).body {
            Body::Directory { start, end, .. } => &self.entries[range(start, end)],
            _ => &[],
        }
    }

    /// A name in the text.
    pub(crate) fn name(&self, at: u32) -> &[u8] {
        let at = at as usize;
        &self.text[at + 1..][..usize::from(self.text[at])]
    }

    /// Bytes of memory that the tree takes.
    pub fn memory(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.text.capacity()
            + self.extents.capacity() * size_of::<Extent>()
            + self.xattrs.capacity() * size_of::<Xattr>()
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tree").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

/// The chunks among some extents and their lengths.
pub(crate) fn lengths(extents: &[Extent]) -> impl Iterator<Item = (ChunkId, u32)> {
    let starts = std::iter::once(0).chain(extents.iter().map(|extent| extent.end));
    let pieces = extents.iter().zip(starts);
    // Longer ones than that are refused when a tree is decoded.
    pieces.filter_map(|(extent, start)| Some((extent.chunk?, (extent.end - start) as u32)))
}

fn range(start: u32, end: u32) -> Range<usize> {
    start as usize..end as usize
}
