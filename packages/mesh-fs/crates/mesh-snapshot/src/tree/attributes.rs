//! Attributes of a node.

use mesh_chunks::ChunkId;

/// Id of a node. The root directory is 0, and ids are consecutive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Type of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe; the data in it is not part of a snapshot.
    Fifo,
    /// A Unix domain socket in the file system.
    Socket,
    /// A character device, represented by its number.
    CharDevice,
    /// A block device, represented by its number.
    BlockDevice,
}

/// Attributes of a node, as `stat` returns them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Type of the node.
    pub kind: Kind,
    /// Permission bits, including setuid, setgid and sticky (12 bits).
    pub permissions: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Length of a file or of the target of a link in bytes; 4096 for a directory.
    pub size: u64,
    /// Modification time in whole seconds since the Unix epoch.
    pub modified_s: i64,
    /// Nanoseconds to add to `modified_s`, below 1,000,000,000.
    pub modified_ns: u32,
    /// Number of names of a file inside the tree; for a directory, 2 plus its subdirectories.
    pub links: u32,
    /// Number of a device; 0 for other kinds.
    pub device: u64,
    /// Number of bytes of a file that are in chunks, not in holes.
    pub stored: u64,
}

/// A range of a file: a chunk or a hole. It begins at the end of the previous extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the end in the file, exclusive.
    pub end: u64,
    /// The chunk with the bytes, or `None` for a hole.
    pub chunk: Option<ChunkId>,
}

/// Totals of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Number of names of all kinds, without the root.
    pub entries: u64,
    /// Number of files. A file with several names counts once.
    pub files: u64,
    /// Total size of all files in bytes, including holes.
    pub bytes: u64,
    /// Total length of all chunks in bytes, without duplicates.
    pub stored: u64,
}

/// Attributes that are serialized unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Timestamp,
}

/// A time, in seconds since the Unix epoch and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Timestamp {
    pub(crate) s: i64,
    pub(crate) ns: u32,
}
