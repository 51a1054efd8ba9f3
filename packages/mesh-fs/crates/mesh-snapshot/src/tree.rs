//! A compact in-memory representation of a directory tree.

pub(crate) mod attributes;
pub(crate) mod compare;
pub(crate) mod name;
pub(crate) mod privilege;

use crate::tree::attributes::{Attributes, Extent, Kind, Metadata, NodeId, Timestamp, Totals};
use mesh_chunks::ChunkId;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

/// Size that directories report, as programs expect it.
const DIRECTORY_SIZE: u64 = 4096;
/// Files of at least this size come after all others in [`Tree::chunks`].
const BIG: u64 = 1 << 20;

/// Directories, files and other nodes, as they were when the snapshot was taken.
///
/// Nodes are numbered in depth-first order, with the names of a directory sorted by their bytes. A
/// file with several hard links is one node. Passing a node of another tree to a method returns
/// meaningless results and may panic.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Entries of all directories. The entries of one directory are contiguous and sorted.
    pub(crate) entries: Vec<Entry>,
    /// Names, each preceded by its length; targets of symbolic links; extended attributes.
    pub(crate) text: Vec<u8>,
    pub(crate) extents: Vec<Extent>,
    /// Sorted by node.
    pub(crate) xattrs: Vec<Xattr>,
}

/// A node without its names.
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
    /// For a file, the number of bytes in chunks; for a device, its number.
    pub(crate) stored_or_device: u64,
}

/// Data of a node that depends on its kind.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// Range of `entries`, and the parent directory.
    Directory {
        start: u32,
        end: u32,
        parent: u32,
    },
    /// Range of `extents`.
    File {
        start: u32,
        end: u32,
    },
    /// Range of `text` that contains the target.
    Symlink {
        start: u32,
        end: u32,
    },
    Nothing,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset of the name in `text`.
    pub(crate) name: u32,
    pub(crate) node: u32,
}

/// An extended attribute. `text` contains its name, followed by its value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xattr {
    pub(crate) node: u32,
    pub(crate) start: u32,
    pub(crate) name_len: u32,
    pub(crate) value_len: u32,
}

impl Node {
    pub(crate) fn new(kind: Kind, metadata: &Metadata, body: Body) -> Self {
        let Metadata { permissions, uid, gid, modified: Timestamp { s, ns } } = *metadata;
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
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);

    /// Number of nodes. Their ids are 0 to `len() - 1`.
    #[expect(clippy::len_without_is_empty, reason = "there is always a root")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the attributes of a node.
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

    /// Looks up a name in a directory. Returns `None` if `directory` is not a directory.
    pub fn lookup(&self, directory: NodeId, name: &[u8]) -> Option<NodeId> {
        let entries = self.entries(directory);
        let found = entries.binary_search_by(|entry| self.name(entry.name).cmp(name));
        found.ok().map(|nth| NodeId(entries[nth].node))
    }

    /// Returns the names in a directory and their nodes, sorted by the bytes of the names.
    pub fn children(
        &self,
        directory: NodeId,
    ) -> impl ExactSizeIterator<Item = (&[u8], NodeId)> + DoubleEndedIterator {
        self.entries(directory).iter().map(|entry| (self.name(entry.name), NodeId(entry.node)))
    }

    /// Returns the entry at index `nth` of [`children`](Self::children).
    pub fn child(&self, directory: NodeId, nth: usize) -> Option<(&[u8], NodeId)> {
        let entry = self.entries(directory).get(nth)?;
        Some((self.name(entry.name), NodeId(entry.node)))
    }

    /// Returns the parent of a directory. For the root and for other kinds, returns the node
    /// itself.
    pub fn parent(&self, directory: NodeId) -> NodeId {
        match self.node(directory).body {
            Body::Directory { parent, .. } => NodeId(parent),
            _ => directory,
        }
    }

    /// Returns the extents of a file in order, without gaps. The last one ends at the file's size.
    pub fn extents(&self, file: NodeId) -> &[Extent] {
        self.extents_of(self.node(file))
    }

    /// Returns the target of a symbolic link; empty for other kinds.
    pub fn target(&self, link: NodeId) -> &[u8] {
        match self.node(link).body {
            Body::Symlink { start, end } => &self.text[range(start, end)],
            _ => &[],
        }
    }

    /// Returns the extended attributes of a node and their values, sorted by name.
    pub fn xattrs(&self, node: NodeId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = self.xattrs.partition_point(|xattr| xattr.node < node.0);
        let of_node = self.xattrs[first..].iter().take_while(move |xattr| xattr.node == node.0);
        of_node.map(|xattr| {
            let (start, middle) = (xattr.start, xattr.start + xattr.name_len);
            let end = middle + xattr.value_len;
            (&self.text[range(start, middle)], &self.text[range(middle, end)])
        })
    }

    /// Returns the chunks of all files and their lengths, without duplicates.
    ///
    /// The chunks of files below 1 MiB come first, in the order of the tree, followed by the chunks
    /// of larger files.
    pub fn chunks(&self) -> impl Iterator<Item = (ChunkId, u32)> {
        let mut seen = HashSet::new();
        let of_files = |is_big: bool| {
            let files = self.nodes.iter().filter(move |node| (node.size >= BIG) == is_big);
            files.flat_map(|node| lengths(self.extents_of(node)))
        };
        of_files(false).chain(of_files(true)).filter(move |(chunk, _)| seen.insert(*chunk))
    }

    /// Returns the totals of the tree.
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

    /// Returns the name at an offset of `text`.
    pub(crate) fn name(&self, at: u32) -> &[u8] {
        let at = at as usize;
        &self.text[at + 1..][..usize::from(self.text[at])]
    }

    /// Returns the memory that the tree occupies, in bytes.
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

/// Returns the chunks of some extents with their lengths, without holes.
pub(crate) fn lengths(extents: &[Extent]) -> impl Iterator<Item = (ChunkId, u32)> {
    let starts = std::iter::once(0).chain(extents.iter().map(|extent| extent.end));
    let pieces = extents.iter().zip(starts);
    // The cast is lossless: decoding rejects longer chunks.
    pieces.filter_map(|(extent, start)| Some((extent.chunk?, (extent.end - start) as u32)))
}

fn range(start: u32, end: u32) -> Range<usize> {
    start as usize..end as usize
}
