//! The interface that a file system implements.

use crate::directory::DirectoryReply;
use crate::reply::ReadReply;
use rustix::io::Errno;

/// Result of a call; the error is returned to the process that made the system call.
pub type FsResult<T> = Result<T, Errno>;

/// Inode number of the root directory.
pub const ROOT: u64 = 1;

/// A read-only file system.
///
/// The kernel caches each reply indefinitely, including negative lookups, until it is invalidated
/// by [`Mount::invalidate_node`](crate::Mount::invalidate_node) or a related method, or until the
/// kernel needs the memory. Methods are called by several threads concurrently. All methods except
/// [`FileSystem::read`] must return without delay: they occupy one of a few threads, cannot be
/// interrupted, and [`Mount::close`](crate::Mount::close) waits for them. If a method panics, the
/// reply is `EIO`.
///
/// # Lookup counts
/// The kernel refers to a file by its inode number once it has received an [`Entry`] for it: as a
/// result of [`FileSystem::lookup`], or from [`FileSystem::read_directory`]. Count one lookup for
/// each `Ok` of `lookup`, and for each call of the closure given to [`DirectoryReply::add`], which
/// is called only for an entry that is sent to the kernel. [`FileSystem::forget`] decrements the
/// count. As long as it is not zero, the number must refer to the same file. If a reply does not
/// reach the kernel, because the mount has ended or the listing failed afterwards, `forget` is
/// called for its lookups as well. The root is always known. When the mount ends, `forget` is not
/// called any more: discard the counts.
pub trait FileSystem: Send + Sync {
    /// Looks up a name in a directory. The kernel also caches `ENOENT`.
    ///
    /// # Errors
    /// The error for the system call.
    fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Entry>;

    /// Decrements the lookup count of a file by this number.
    fn forget(&self, _ino: u64, _lookups: u64) {}

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// The error for the system call.
    fn attributes(&self, ino: u64) -> FsResult<Attributes>;

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// The error for the system call.
    fn read_link(&self, ino: u64) -> FsResult<Vec<u8>>;

    /// Reads `len` bytes of a file at `offset`. The reply may be sent later and from any thread.
    ///
    /// A reply with fewer bytes means that the file ends there. A read without a reply is
    /// suspended: it occupies some memory, but no thread.
    fn read(&self, ino: u64, offset: u64, len: u32, reply: ReadReply);

    /// Notifies that the read with this [`ReadReply::id`] was cancelled.
    ///
    /// The reading process was interrupted, or the mount is closed. The read has been answered
    /// already; a reply has no effect.
    fn abandon(&self, _ino: u64, _read: u64) {}

    /// Lists a directory from `offset`: 0, or an offset that was passed to [`DirectoryReply::add`].
    ///
    /// Add names until `add` returns false or the listing is complete.
    ///
    /// # Errors
    /// The error for the system call.
    fn read_directory(&self, ino: u64, offset: u64, entries: &mut DirectoryReply) -> FsResult<()>;

    /// Returns the value of an extended attribute; `ENODATA` if it does not exist.
    ///
    /// # Errors
    /// The error for the system call. After `ENOSYS` the kernel sends no more such requests.
    fn xattr(&self, ino: u64, name: &[u8]) -> FsResult<Vec<u8>>;

    /// Returns the names of all extended attributes.
    ///
    /// # Errors
    /// The error for the system call. After `ENOSYS` the kernel sends no more such requests.
    fn xattr_names(&self, ino: u64) -> FsResult<Vec<Vec<u8>>>;

    /// Returns the first offset from `offset` on that is in data or in a hole.
    ///
    /// The end of a file counts as a hole.
    ///
    /// # Errors
    /// `ENXIO` if no such offset exists. After `ENOSYS` the kernel treats all files as having no
    /// holes.
    fn seek(&self, ino: u64, offset: u64, whence: Seek) -> FsResult<u64>;

    /// Returns the totals for `statfs`.
    fn space(&self) -> Space;
}

/// A file whose attributes are sent to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Inode number: at least 2, and unique as long as the kernel knows the file.
    pub ino: u64,
    /// Attributes of the file.
    pub attributes: Attributes,
}

/// Attributes of a file, as `stat` returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub ino: u64,
    /// Type of the file.
    pub kind: Kind,
    /// Permission bits, including setuid, setgid and sticky (12 bits).
    pub permissions: u16,
    /// Number of hard links.
    pub links: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Device number of a device node, as the system encodes it.
    pub device: u64,
    /// Size in bytes.
    pub size: u64,
    /// Number of allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Modification time in whole seconds since the Unix epoch.
    pub modified_s: i64,
    /// Nanoseconds to add to `modified_s`.
    pub modified_ns: u32,
}

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Returns the file type bits of the mode.
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

/// The target of a search in a file with holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Seek {
    /// The start of data.
    Data,
    /// The start of a hole.
    Hole,
}

/// Totals of a file system, as `statfs` returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    /// Block size in bytes.
    pub block_len: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub blocks_free: u64,
    /// Number of files.
    pub files: u64,
    /// Number of files that can still be created.
    pub files_free: u64,
    /// Maximum length of a name in bytes.
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
