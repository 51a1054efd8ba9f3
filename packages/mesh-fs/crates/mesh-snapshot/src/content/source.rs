//! An open file, as far as it is read.

use crate::format::encode::Xattrs;
use crate::format::limits::{NAME_LEN_MAX, XATTR_LEN_MAX};
use crate::walk::file_stat::Look;
use rustix::buffer::spare_capacity;
use rustix::fs::{SeekFrom, fgetxattr, flistxattr, fstat, seek};
use rustix::io::{Errno, pread, retry_on_intr};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// What a file's content is read from.
pub(crate) trait Source {
    /// What the system says of it now.
    fn look(&self) -> io::Result<Look>;

    /// Fills the front of `into` with bytes from an offset on, and says how many: 0 at the end.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The next bytes from an offset on that are in no hole, if there are some.
    fn data_behind(&self, offset: u64) -> io::Result<Option<Range<u64>>>;

    /// Its extended attributes that have a meaning elsewhere, as far as they can be read.
    fn xattrs(&self) -> Xattrs;
}

impl Source for OwnedFd {
    fn look(&self) -> io::Result<Look> {
        Ok(Look::new(&fstat(self)?))
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(retry_on_intr(|| pread(self, &mut *into, offset))?)
    }

    fn data_behind(&self, offset: u64) -> io::Result<Option<Range<u64>>> {
        let start = match seek(self, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // The file system does not know of holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(offset..u64::MAX)),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(start..seek(self, SeekFrom::Hole(start))?))
    }

    fn xattrs(&self) -> Xattrs {
        let mut list = Vec::with_capacity(XATTR_LEN_MAX);
        // Not all file systems have them, and what cannot be listed is as good as not there.
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

/// Users' own attributes, and what a program may do; labels of security modules are of a machine.
fn is_kept(name: &[u8]) -> bool {
    (name.starts_with(b"user.") || name == b"security.capability") && name.len() <= NAME_LEN_MAX
}
