//! Constants of the kernel's FUSE protocol, version 7.31 and later.

/// Version of the protocol that this server implements.
pub(crate) const MAJOR: u32 = 7;
pub(crate) const MINOR: u32 = 38;
/// Oldest minor version with all required features.
pub(crate) const MINOR_MIN: u32 = 31;

/// Length of the header of a request.
pub(crate) const REQUEST_HEADER_LEN: usize = 40;
/// Length of the header of a reply or notification.
pub(crate) const REPLY_HEADER_LEN: usize = 16;
/// Length of `fuse_entry_out`: an entry in a reply, including its attributes.
pub(crate) const ENTRY_LEN: usize = 128;
/// Length of the header of a name in a directory listing.
pub(crate) const LISTED_LEN: usize = 24;
/// Errors from this number on are internal to the kernel, which does not accept them from others.
pub(crate) const ERRNO_END: i32 = 512;
/// Maximum length of the value of an extended attribute in bytes.
pub(crate) const XATTR_LEN_MAX: usize = 64 * 1024;
/// Maximum length of a name in a directory listing that the kernel accepts, in bytes.
pub(crate) const NAME_LEN_MAX: usize = 1024;

/// Opcodes of requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Features that the kernel offers and the server accepts when a mount is initialized.
pub(crate) mod feature {
    pub(crate) const ASYNC_READ: u32 = 1;
    pub(crate) const DO_READDIRPLUS: u32 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u32 = 1 << 14;
    pub(crate) const NO_OPEN_SUPPORT: u32 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(crate) const MAX_PAGES: u32 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u32 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u32 = 1 << 24;

    /// Features that the server accepts if they are offered. `ASYNC_DIO` is not among them: a
    /// process whose direct read is suspended could not even be killed.
    pub(crate) const WANTED: u32 = ASYNC_READ
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | NO_OPEN_SUPPORT
        | PARALLEL_DIROPS
        | MAX_PAGES
        | CACHE_SYMLINKS
        | NO_OPENDIR_SUPPORT;
}

/// Notifications from the server to the kernel.
pub(crate) mod notice {
    pub(crate) const INVALIDATE_NODE: i32 = 2;
    pub(crate) const INVALIDATE_ENTRY: i32 = 3;
    pub(crate) const DELETE: i32 = 6;
}

/// Values of `whence` for `lseek`.
pub(crate) const SEEK_DATA: u32 = 3;
pub(crate) const SEEK_HOLE: u32 = 4;

/// Flag for an open file: the cached content stays valid.
pub(crate) const OPEN_KEEP_CACHE: u32 = 1 << 1;
/// Flag for an open directory: its listing may be cached.
pub(crate) const OPEN_CACHE_DIRECTORY: u32 = 1 << 3;
