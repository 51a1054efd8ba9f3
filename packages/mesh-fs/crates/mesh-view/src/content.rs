//! Writing the content of a file of a tree.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::Path;

use mesh_chunks::Store;
use mesh_snapshot::{NodeId, Tree};

use crate::unpack::{Outcome, UnpackError, at};

/// Writes the content of a file, with its holes. Errors contain `name`.
pub(crate) fn write_content(
    tree: &Tree,
    node: NodeId,
    store: &Store,
    file: &mut File,
    name: &Path,
) -> Outcome<()> {
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
