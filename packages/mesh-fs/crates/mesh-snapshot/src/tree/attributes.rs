//! What is known of one node of a tree besides its names.

use mesh_chunks::ChunkId;

/// A node of a tree: 0 is the root directory, and all are numbered from there without gaps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Names of other nodes.
    Directory,
    /// Bytes.
    File,
    /// A path.
    Symlink,
    /// A named pipe, without what is in it.
    Fifo,
    /// The place of a socket, without the socket.
    Socket,
    /// A device of characters, by its number.
    CharDevice,
    /// A device of blocks, by its number.
    BlockDevice,
}

/// What the file system says of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// What it is.
    pub kind: Kind,
    /// The twelve bits of its permissions.
    pub permissions: u16,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes of a file, of a link's target, or 4096 for a directory.
    pub size: u64,
    /// When its content was last modified, in whole seconds of the Unix epoch.
    pub modified_s: i64,
    /// What is to be added to that, below 1,000,000,000.
    pub modified_ns: u32,
    /// Names of a file inside the tree; of a directory, two and its subdirectories.
    pub links: u32,
    /// The number of a device; 0 for others.
    pub device: u64,
    /// Bytes of a file that are in chunks: those outside its holes.
    pub stored: u64,
}

/// A piece of a file: a chunk or a hole. It begins where the one before it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The offset in the file behind its last byte.
    pub end: u64,
    /// Its bytes, or none for a hole.
    pub chunk: Option<ChunkId>,
}

/// How much there is in a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Names, of all kinds, without the root.
    pub entries: u64,
    /// Files; one with several names counts once.
    pub files: u64,
    /// Bytes of all files as they appear, holes included.
    pub bytes: u64,
    /// Bytes of all chunks, each chunk once.
    pub stored: u64,
}

/// The attributes that travel as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) modified: Moment,
}

/// A time, in seconds of the Unix epoch and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) s: i64,
    pub(crate) ns: u32,
}
