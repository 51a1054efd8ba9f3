//! An open file that is being read.

use crate::format::encode::Xattrs;
use crate::format::limits::{NAME_LEN_MAX, XATTR_LEN_MAX};
use crate::walk::file_stat::FileStat;
use rustix::buffer::spare_capacity;
use rustix::fs::{SeekFrom, fgetxattr, flistxattr, fstat, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Source of the content of a file.
pub(crate) trait Source {
    /// Returns the current metadata.
    fn stat(&self) -> io::Result<FileStat>;

    /// Reads bytes at an offset into the start of `into`; returns their number, 0 at the end.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the next range from an offset that is not in a hole, if there is one.
    fn data_behind(&self, offset: u64) -> io::Result<Option<Range<u64>>>;

    /// Returns the portable extended attributes, as far as they can be read.
    fn xattrs(&self) -> Xattrs;
}

impl Source for OwnedFd {
    fn stat(&self) -> io::Result<FileStat> {
        Ok(FileStat::new(&fstat(self)?))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| pread(self, &mut *into, offset))?)
    }

    fn data_behind(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let start = match seek(self, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // The file system does not support holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..u64::MAX)),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(start..seek(self, SeekFrom::Hole(start))?))
    }

    fn xattrs(&self) -> Xattrs {
        let mut list = Vec::with_capacity(XATTR_LEN_MAX);
        // Some file systems have no extended attributes. Ignore attributes that cannot be listed.
        if matches!(flistxattr(self, spare_capacity(&mut list)), Err(_) | Ok(0)) {
            return Xattrs::new();
        }
        let names = list.split(|byte| *byte == 0).filter(|name| is_kept(name));
        let mut xattrs: Xattrs = names
            .filter_map(|name| {
                let mut value = Vec::with_capacity(XATTR_LEN_MAX);
                fgetxattr(self, OsStr::from_bytes(name), spare_capacity(&mut value)).ok()?;
                Some((name.into(), value.into()))
            })
            .collect();
        xattrs.sort_unstable();
        xattrs
    }
}

/// Keeps user attributes and file capabilities. Labels of security modules are machine-specific.
fn is_kept(name: &[u8]) -> bool {
    (name.starts_with(b"user.") || name == b"security.capability") && name.len() <= NAME_LEN_MAX
}
