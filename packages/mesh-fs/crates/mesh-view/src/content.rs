//! The content of one entry of a tree, written into a file.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use mesh_chunks::Store;
use mesh_snapshot::{Attributes, NodeId, Tree};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use crate::unpack::{Outcome, UnpackError, at};

/// Writes a file, with its holes; `name` is what errors call it.
pub(crate) fn write_content(
    tree: &Tree,
    node: NodeId,
    store: &Store,
    path: &Path,
    name: &Path,
) -> Outcome<()> {
    let mut file = at(path, File::create(path))?;
    let mut start = 0;
    for extent in tree.extents(node) {
        if let Some(chunk) = extent.chunk {
            let missing = || UnpackError::Missing(name.to_owned(), chunk);
            let bytes = store.get(&chunk).ok().flatten().ok_or_else(missing)?;
            at(name, file.write_all(&bytes))?;
        } else {
            at(name, file.seek(SeekFrom::Start(extent.end)))?;
        }
        start = extent.end;
    }
    at(name, file.set_len(start))
}

/// Says that an entry, not what it may lead to, was modified when the one of the tree was.
pub(crate) fn set_times(path: &Path, given: &Attributes) -> Outcome<()> {
    let time = Timespec { tv_sec: given.modified_s, tv_nsec: given.modified_ns.into() };
    let times = Timestamps { last_access: time, last_modification: time };
    let set = rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
    at(path, set.map_err(io::Error::from))
}
