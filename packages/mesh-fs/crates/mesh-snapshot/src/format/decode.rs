//! Decoding and validation of the untrusted description of a tree.

use crate::error::DecodeError;
use crate::format::cursor::Cursor;
use crate::format::encode::{HOLE, KINDS, LINK, MAGIC, VERSION, WITH_XATTRS};
use crate::format::limits::{
    CHUNK_LEN_MAX, DEPTH_MAX, NAME_LEN_MAX, STREAM_LEN_MAX, TARGET_LEN_MAX, XATTR_LEN_MAX,
};
use crate::tree::attributes::{Extent, Kind, Metadata, Timestamp};
use crate::tree::name::is_name;
use crate::tree::{Body, Entry, Node, Tree, Xattr};
use mesh_chunks::ChunkId;

/// Maximum size of a file, the same as in the kernel.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Set in the `node` of an entry that still contains the index of a hard link.
///
/// Node ids are smaller: each node takes several bytes of a stream whose length has at most 31
/// bits.
const UNRESOLVED: u32 = 1 << 31;

/// State of decoding a tree.
struct Decoder<'a> {
    cursor: Cursor<'a>,
    tree: Tree,
    /// Stack of the directories whose entries are not complete, from the root.
    open: Vec<Open>,
    /// Entries of these directories so far; the entries of the innermost directory are last.
    pending: Vec<Entry>,
    links: Vec<Link<'a>>,
}

struct Open {
    node: u32,
    /// Index in `pending` of its first entry.
    names: usize,
}

/// An additional name of a file.
struct Link<'a> {
    /// Path of the first name.
    path: &'a [u8],
    /// Number of nodes before this name; the file must be one of them.
    nodes: u32,
    at: usize,
}

impl Tree {
    /// Decodes the bytes of [`Snapshot::stream`](crate::Snapshot::stream).
    ///
    /// # Errors
    /// The bytes have a different format version, violate the format, or exceed a limit.
    pub fn decode(stream: &[u8]) -> Result<Self, DecodeError> {
        if stream.len() as u64 > STREAM_LEN_MAX {
            return Err(DecodeError::TooLarge);
        }
        let mut decoder = Decoder {
            cursor: Cursor::new(stream),
            tree: Self::default(),
            open: Vec::new(),
            pending: Vec::new(),
            links: Vec::new(),
        };
        decoder.root()?;
        while let Some(open) = decoder.open.last() {
            let (node, names) = (open.node, open.names);
            match decoder.cursor.at_most(NAME_LEN_MAX as u64, "name too long")? {
                0 => decoder.close(node, names)?,
                len => decoder.entry(node, names, len as usize)?,
            }
        }
        if !decoder.cursor.is_at_end() {
            return Err(decoder.cursor.malformed("data after the end"));
        }
        decoder.resolve()?;
        let mut tree = decoder.tree;
        tree.nodes.shrink_to_fit();
        tree.entries.shrink_to_fit();
        tree.text.shrink_to_fit();
        tree.extents.shrink_to_fit();
        tree.xattrs.shrink_to_fit();
        Ok(tree)
    }
}

impl<'a> Decoder<'a> {
    fn root(&mut self) -> Result<(), DecodeError> {
        let magic: [u8; 8] = self.cursor.array().map_err(|_| DecodeError::Version)?;
        let version = self.cursor.byte().map_err(|_| DecodeError::Version)?;
        if (&magic, version) != (MAGIC, VERSION) {
            return Err(DecodeError::Version);
        }
        match self.cursor.byte()? {
            kind @ (1 | 0x11) => self.node(0, kind).map(|_| ()),
            _ => Err(self.cursor.malformed("the root is not a directory")),
        }
    }

    /// Completes the innermost directory.
    fn close(&mut self, node: u32, names: usize) -> Result<(), DecodeError> {
        let (from, to) = (self.tree.entries.len() as u32, self.pending.len() - names);
        let (start, end) = (from, from + to as u32);
        self.tree.entries.extend(self.pending.drain(names..));
        match &mut self.tree.nodes[node as usize].body {
            Body::Directory { start: first, end: last, .. } => (*first, *last) = (start, end),
            _ => return Err(self.cursor.malformed("no directory")),
        }
        self.open.pop();
        Ok(())
    }

    fn entry(&mut self, parent: u32, names: usize, len: usize) -> Result<(), DecodeError> {
        let name = self.cursor.bytes(len)?;
        if !is_name(name) {
            return Err(self.cursor.malformed("not a name"));
        }
        if let Some(last) = self.pending[names..].last()
            && self.tree.name(last.name) >= name
        {
            return Err(self.cursor.malformed("names not in order"));
        }
        let at = self.tree.text.len() as u32;
        self.tree.text.push(len as u8);
        self.tree.text.extend_from_slice(name);
        // Reserve the place of this entry: it precedes the entries of its children.
        let nth = self.pending.len();
        self.pending.push(Entry { name: at, node: 0 });
        let node = match self.cursor.byte()? {
            LINK => self.link()?,
            kind => self.node(parent, kind)?,
        };
        self.pending[nth].node = node;
        Ok(())
    }

    fn link(&mut self) -> Result<u32, DecodeError> {
        let path = self.cursor.text(DEPTH_MAX * (NAME_LEN_MAX + 1))?;
        let nth = self.links.len() as u32;
        let at = self.cursor.at();
        self.links.push(Link { path, nodes: self.tree.nodes.len() as u32, at });
        Ok(UNRESOLVED | nth)
    }

    fn node(&mut self, parent: u32, kind_and_flags: u8) -> Result<u32, DecodeError> {
        let number = usize::from(kind_and_flags & !WITH_XATTRS);
        let kind = number.checked_sub(1).and_then(|nth| KINDS.get(nth)).copied();
        let kind = kind.ok_or(self.cursor.malformed("unknown kind"))?;
        let metadata = self.metadata()?;
        let id = self.tree.nodes.len() as u32;
        if kind_and_flags & WITH_XATTRS != 0 {
            self.xattrs(id)?;
        }
        let mut node = Node::new(kind, &metadata, Body::Nothing);
        match kind {
            Kind::Directory => {
                node.body = Body::Directory { start: 0, end: 0, parent };
                self.enter(parent, id)?;
            }
            Kind::File => self.extents(&mut node)?,
            Kind::Symlink => {
                let target = self.cursor.text(TARGET_LEN_MAX)?;
                if target.is_empty() || target.contains(&0) {
                    return Err(self.cursor.malformed("not a target"));
                }
                let start = self.tree.text.len() as u32;
                self.tree.text.extend_from_slice(target);
                node.size = target.len() as u64;
                node.body = Body::Symlink { start, end: start + target.len() as u32 };
            }
            Kind::Fifo | Kind::Socket => {}
            Kind::CharDevice | Kind::BlockDevice => node.stored_or_device = self.cursor.number()?,
        }
        self.tree.nodes.push(node);
        Ok(id)
    }

    /// Opens a directory, whose node is added next and whose entries follow.
    fn enter(&mut self, parent: u32, node: u32) -> Result<(), DecodeError> {
        if self.open.len() > DEPTH_MAX {
            return Err(self.cursor.malformed("nested too deeply"));
        }
        if let Some(above) = self.tree.nodes.get_mut(parent as usize) {
            above.links += 1;
        }
        self.open.push(Open { node, names: self.pending.len() });
        Ok(())
    }

    fn metadata(&mut self) -> Result<Metadata, DecodeError> {
        let permissions = self.cursor.at_most(0o7777, "not permissions")? as u16;
        let (uid, gid) = (self.cursor.small()?, self.cursor.small()?);
        let s = crate::format::varint::unfold(self.cursor.number()?);
        let ns = self.cursor.at_most(999_999_999, "not nanoseconds")? as u32;
        Ok(Metadata { permissions, uid, gid, modified: Timestamp { s, ns } })
    }

    fn xattrs(&mut self, node: u32) -> Result<(), DecodeError> {
        let count = self.cursor.number()?;
        let mut last: &[u8] = b"";
        for _ in 0..count {
            let name = self.cursor.text(NAME_LEN_MAX)?;
            if name <= last || name.contains(&0) {
                return Err(self.cursor.malformed("extended attributes not in order"));
            }
            last = name;
            let value = self.cursor.text(XATTR_LEN_MAX)?;
            let start = self.tree.text.len() as u32;
            let (name_len, value_len) = (name.len() as u32, value.len() as u32);
            self.tree.text.extend_from_slice(name);
            self.tree.text.extend_from_slice(value);
            self.tree.xattrs.push(Xattr { node, start, name_len, value_len });
        }
        if count == 0 { Err(self.cursor.malformed("no extended attributes")) } else { Ok(()) }
    }

    fn extents(&mut self, node: &mut Node) -> Result<(), DecodeError> {
        let count = self.cursor.number()?;
        let start = self.tree.extents.len() as u32;
        let (mut end, mut stored) = (0_u64, 0);
        // Do not allocate for `count`, which is untrusted: the loop ends with an error at the end
        // of the bytes.
        for _ in 0..count {
            let number = self.cursor.number()?;
            let (len, is_hole) = (number >> 1, number & HOLE != 0);
            end = end.saturating_add(len);
            if len == 0 || end > SIZE_MAX || (!is_hole && len > u64::from(CHUNK_LEN_MAX)) {
                return Err(self.cursor.malformed("not an extent"));
            }
            let chunk = if is_hole { None } else { Some(ChunkId(self.cursor.array()?)) };
            stored += if is_hole { 0 } else { len };
            self.tree.extents.push(Extent { end, chunk });
        }
        node.body = Body::File { start, end: self.tree.extents.len() as u32 };
        (node.size, node.stored_or_device) = (end, stored);
        Ok(())
    }

    /// Resolves hard links, and counts the links of each file.
    fn resolve(&mut self) -> Result<(), DecodeError> {
        let files: Vec<u32> =
            self.links.iter().map(|link| self.file(link)).collect::<Result<_, _>>()?;
        for entry in &mut self.tree.entries {
            if entry.node & UNRESOLVED != 0 {
                entry.node = files[(entry.node & !UNRESOLVED) as usize];
                self.tree.nodes[entry.node as usize].links += 1;
            }
        }
        Ok(())
    }

    /// Returns the file that has the path of the link.
    fn file(&self, link: &Link<'_>) -> Result<u32, DecodeError> {
        let mut node = Some(Tree::ROOT);
        for name in link.path.split(|byte| *byte == b'/') {
            // Do not descend into an unresolved entry: its value is not a node id.
            node = node.filter(|node| node.0 & UNRESOLVED == 0);
            node = node.and_then(|node| self.tree.lookup(node, name));
        }
        let is_earlier = |node: &u32| *node < link.nodes;
        let is_file = |node: &u32| self.tree.nodes[*node as usize].kind == Kind::File;
        let file = node.map(|node| node.0).filter(is_earlier).filter(is_file);
        file.ok_or(DecodeError::Malformed { at: link.at, problem: "a link to nothing before it" })
    }
}
