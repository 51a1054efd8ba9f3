//! What a file system answers to what the kernel asks.

use crate::directory::DirectoryReply;
use crate::reply::ReadReply;
use rustix::io::Errno;

/// What a call gives, or the error that whoever asked gets to see.
pub type Answer<T> = Result<T, Errno>;

/// The number of the root directory.
pub const ROOT: u64 = 1;

/// Files that are shown at a mountpoint, to be read only.
///
/// Whatever is answered the kernel keeps for good, an absent name too, until it is told otherwise
/// by [`Mount::invalidate_node`](crate::Mount::invalidate_node) and its like, or until it needs the
/// memory. Calls come from several threads at a time. All but [`FileSystem::read`] answer at once:
/// they hold one of the few threads, cannot be interrupted, and
/// [`Mount::close`](crate::Mount::close) waits for them. A call that panics is answered `EIO`.
///
/// # What the kernel knows
/// The kernel knows a file by its number from when it gets an [`Entry`] of it: as an answer to
/// [`FileSystem::lookup`], or from [`FileSystem::read_directory`]. Count one lookup for each
/// `Entry` that leaves your code, that is, for each `Ok` of `lookup` and each time that the closure
/// given to [`DirectoryReply::add`] is called; it is called only for an entry that goes to the
/// kernel. [`FileSystem::forget`] takes lookups back; as long as any are left, the number must mean
/// this file and no other. An answer that does not reach the kernel, because the mount has ended or
/// the listing failed afterwards, is taken back by `forget` like any other. The root is known
/// always. When the mount ends, nothing more is forgotten: drop what you have counted.
pub trait FileSystem: Send + Sync {
    /// Finds a name in a directory; `ENOENT` is kept by the kernel as well.
    ///
    /// # Errors
    /// What whoever asked gets to see.
    fn lookup(&self, parent: u64, name: &[u8]) -> Answer<Entry>;

    /// The kernel gives back so many of its lookups of a file.
    fn forget(&self, _ino: u64, _lookups: u64) {}

    /// What `stat` tells of a file.
    ///
    /// # Errors
    /// What whoever asked gets to see.
    fn attributes(&self, ino: u64) -> Answer<Attributes>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// What whoever asked gets to see.
    fn read_link(&self, ino: u64) -> Answer<Vec<u8>>;

    /// Reads `len` bytes of a file from `offset` on, now or later and from any thread.
    ///
    /// Fewer bytes than asked for say that the file ends there. What is not answered yet is parked:
    /// it costs some memory, but no thread.
    fn read(&self, ino: u64, offset: u64, len: u32, reply: ReadReply);

    /// Nobody waits any more for the read whose [`ReadReply::id`] that was: whoever asked was
    /// interrupted, or the mount is closed. It has been answered; answering it again does nothing.
    fn abandon(&self, _ino: u64, _read: u64) {}

    /// Lists a directory from `offset` on: 0 at first, later one of the offsets given to
    /// [`DirectoryReply::add`]. Adds until that says that no more fits, or until all is listed.
    ///
    /// # Errors
    /// What whoever asked gets to see.
    fn read_directory(&self, ino: u64, offset: u64, entries: &mut DirectoryReply) -> Answer<()>;

    /// The value of one extended attribute; `ENODATA` where there is none.
    ///
    /// # Errors
    /// What whoever asked gets to see. After `ENOSYS` the kernel does not ask again.
    fn xattr(&self, ino: u64, name: &[u8]) -> Answer<Vec<u8>>;

    /// The names of all extended attributes.
    ///
    /// # Errors
    /// What whoever asked gets to see. After `ENOSYS` the kernel does not ask again.
    fn xattr_names(&self, ino: u64) -> Answer<Vec<Vec<u8>>>;

    /// The first place from `offset` on where there is data, or a hole; the end of a file counts as
    /// a hole.
    ///
    /// # Errors
    /// `ENXIO` where there is none. After `ENOSYS` the kernel takes all files as without holes.
    fn seek(&self, ino: u64, offset: u64, whence: Seek) -> Answer<u64>;

    /// What `statfs` tells of all files together.
    fn space(&self) -> Space;
}

/// A file that the kernel gets to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The file's number: at least 2, and its own as long as the kernel knows it.
    pub ino: u64,
    /// What `stat` tells of it.
    pub attributes: Attributes,
}

/// What `stat` tells of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The file's number.
    pub ino: u64,
    /// What it is.
    pub kind: Kind,
    /// Who may do what: the lower twelve bits of the mode.
    pub permissions: u16,
    /// How many names it has.
    pub links: u32,
    /// Whose it is.
    pub uid: u32,
    /// Which group's it is.
    pub gid: u32,
    /// Which device it stands for, if it is one, as the system numbers them.
    pub device: u64,
    /// How many bytes it has.
    pub size: u64,
    /// How many blocks of 512 bytes it takes.
    pub blocks: u64,
    /// When it was last changed, in seconds since 1970.
    pub modified_s: i64,
    /// The nanoseconds beyond those.
    pub modified_ns: u32,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It has names of others.
    Directory,
    /// It has bytes.
    File,
    /// It leads elsewhere.
    Symlink,
    /// A pipe with a name.
    Fifo,
    /// A socket with a name.
    Socket,
    /// A device without blocks.
    CharDevice,
    /// A device with blocks.
    BlockDevice,
}

impl Kind {
    /// The bits of a mode that say so.
    pub fn mode(self) -> u32 {
        match self {
            Self::Fifo => 0o01_0000,
            Self::CharDevice => 0o02_0000,
            Self::Directory => 0o04_0000,
            Self::BlockDevice => 0o06_0000,
            Self::File => 0o10_0000,
            Self::Symlink => 0o12_0000,
            Self::Socket => 0o14_0000,
        }
    }
}

/// What is looked for in a file with holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seek {
    /// Where bytes begin.
    Data,
    /// Where there are none.
    Hole,
}

/// What `statfs` tells of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// How many bytes a block has.
    pub block_len: u32,
    /// How many blocks there are.
    pub blocks: u64,
    /// How many of them are free.
    pub blocks_free: u64,
    /// How many files there are.
    pub files: u64,
    /// How many more there could be.
    pub files_free: u64,
    /// How long a name may be.
    pub name_len_max: u32,
}

impl Default for Space {
    fn default() -> Self {
        Self {
            block_len: 4096,
            blocks: 0,
            blocks_free: 0,
            files: 0,
            files_free: 0,
            name_len_max: 255,
        }
    }
}
