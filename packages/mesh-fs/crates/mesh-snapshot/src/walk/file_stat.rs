//! Metadata of a file at one time.

use crate::tree::attributes::{Kind, Metadata, Timestamp};
use rustix::fs::{FileType, Stat};

/// Metadata of a file that differs if its content may differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileVersion {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: Timestamp,
    /// Time of the last change of content or attributes (ctime), which programs cannot set.
    pub(crate) changed: Timestamp,
}

impl FileVersion {
    /// Returns device and inode, which identify the file regardless of its content.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Returns whether any change after `now` is guaranteed to alter this metadata.
    ///
    /// The system's timestamps advance in steps, usually of milliseconds and at most of two
    /// seconds.
    pub(crate) fn is_settled(&self, now: Timestamp) -> bool {
        let Timestamp { s, ns } = self.changed;
        if ns == 0 { s.saturating_add(2) < now.s } else { self.changed < now }
    }
}

/// Attributes of a node of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileStat {
    pub(crate) kind: Kind,
    pub(crate) file_version: FileVersion,
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether it has more than one hard link, inside the tree or elsewhere.
    pub(crate) has_links: bool,
    /// Whether it occupies less disk space than its size, so that it may have holes.
    pub(crate) is_sparse: bool,
    /// Number of a device.
    pub(crate) device: u64,
}

impl FileStat {
    #[expect(clippy::unnecessary_cast, reason = "the types of fields differ between processors")]
    pub(crate) fn new(stat: &Stat) -> Self {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice,
            FileType::BlockDevice => Kind::BlockDevice,
            _ => Kind::File,
        };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let is_device = matches!(kind, Kind::CharDevice | Kind::BlockDevice);
        Self {
            kind,
            file_version: FileVersion {
                device: stat.st_dev as u64,
                inode: stat.st_ino as u64,
                size,
                modified: timestamp(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
                changed: timestamp(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
            },
            permissions: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            has_links: stat.st_nlink > 1,
            is_sparse: (stat.st_blocks as u64).saturating_mul(512) < size,
            device: if is_device { stat.st_rdev as u64 } else { 0 },
        }
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata {
            permissions: self.permissions,
            uid: self.uid,
            gid: self.gid,
            modified: self.file_version.modified,
        }
    }
}

fn timestamp(s: i64, ns: u64) -> Timestamp {
    // A file system may return invalid nanoseconds, which the format does not permit.
    Timestamp { s, ns: ns.min(999_999_999) as u32 }
}
