//! Records of the files of a directory, for programs that take a snapshot of it later.
//!
//! ```text
//! ledger = "meshkept" version(1) check(32) rest
//! check  = the name of a chunk of the rest, whatever its length
//! rest   = count file_version* stream
//! file_version = 0 | 1 device inode changed_s changed_ns
//! ```
//! The ledger contains one file version for each file of the stream, in the same order: the
//! metadata of the file that the stream does not contain. It is 0 if the file may have changed
//! undetected since it was read. Numbers are encoded as in the stream.
//!
//! A change to how files are split or how chunks are named requires a new version of this format,
//! so that two versions of Mesh never use different names for the same bytes.

pub(crate) mod ledger_file;

use crate::content::file_reader::Content;
use crate::error::DecodeError;
use crate::format::cursor::Cursor;
use crate::format::varint::{fold, put, unfold};
use crate::tree::Tree;
use crate::tree::attributes::{Attributes, Kind, NodeId, Timestamp};
use crate::walk::file_stat::{FileStat, FileVersion};
use mesh_chunks::ChunkId;
use std::fmt;

const MAGIC: &[u8; 8] = b"meshkept";
const VERSION: u8 = 1;
const HEAD_LEN: usize = MAGIC.len() + 1 + 32;

/// Contents of the files of a directory, as an earlier program read them.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use mesh_snapshot::{Ledger, Options, Snapshot};
///
/// let directory = tempfile::tempdir()?;
/// std::fs::write(directory.path().join("hello"), "world")?;
/// let options = Options::default();
/// let first = Snapshot::take(directory.path(), &options, None)?;
/// let ledger = Ledger::decode(&first.ledger())?;
/// let second = Snapshot::resume(directory.path(), &options, &ledger)?;
/// assert_eq!(second.id(), first.id());
/// # Ok(())
/// # }
/// ```
pub struct Ledger {
    tree: Tree,
    /// Sorted by key. A file that was moved during the walk may occur twice.
    files: Vec<Known>,
}

/// Device and inode of a file, and the time of its last change.
type Key = ((u64, u64), Timestamp);

/// Data of a file that the tree does not contain.
struct Known {
    identity: (u64, u64),
    changed: Timestamp,
    node: NodeId,
}

impl Known {
    fn key(&self) -> Key {
        (self.identity, self.changed)
    }
}

impl Ledger {
    /// Decodes the bytes of [`Snapshot::ledger`](crate::Snapshot::ledger).
    ///
    /// # Errors
    /// The bytes have a different format version, are damaged, or are not a ledger.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let magic: [u8; 8] = cursor.array().map_err(|_| DecodeError::Version)?;
        let version = cursor.byte().map_err(|_| DecodeError::Version)?;
        if (&magic, version) != (MAGIC, VERSION) {
            return Err(DecodeError::Version);
        }
        let check = ChunkId(cursor.array()?);
        if ChunkId::of(&bytes[HEAD_LEN..]) != check {
            return Err(DecodeError::Wrong(check));
        }
        let count = cursor.number()?;
        // Do not allocate for `count`, which is untrusted: each version takes at least one byte.
        let mut file_versions = Vec::new();
        for _ in 0..count {
            file_versions.push(file_version(&mut cursor)?);
        }
        let stream = cursor.bytes(cursor.left())?;
        let tree = Tree::decode(stream)?;
        let mut files = Vec::new();
        let mut file_versions = file_versions.into_iter();
        let nodes = (0..tree.len() as u32).map(NodeId);
        for node in nodes.filter(|node| tree.node(*node).kind == Kind::File) {
            let file_version = file_versions.next().ok_or(cursor.malformed("too few versions"))?;
            files.extend(file_version.map(|(identity, changed)| Known { identity, changed, node }));
        }
        if file_versions.next().is_some() {
            return Err(cursor.malformed("too many versions"));
        }
        files.sort_unstable_by_key(Known::key);
        files.shrink_to_fit();
        Ok(Self { tree, files })
    }

    /// Number of known files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Returns whether no file is known.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns the content of a file if it is known and the file has not changed since.
    pub(crate) fn content(&self, stat: &FileStat) -> Option<Content> {
        let key = (stat.file_version.identity(), stat.file_version.changed);
        let nth = self.files.binary_search_by_key(&key, Known::key).ok()?;
        let Known { identity: (device, inode), changed, node } = self.files[nth];
        let Attributes { size, modified_s, modified_ns, .. } = self.tree.attributes(node);
        let modified = Timestamp { s: modified_s, ns: modified_ns };
        let file_version = FileVersion { device, inode, size, modified, changed };
        let xattrs = self.tree.xattrs(node);
        (file_version == stat.file_version).then(|| Content {
            stat: *stat,
            xattrs: xattrs.map(|(name, value)| (name.into(), value.into())).collect(),
            extents: self.tree.extents(node).to_vec(),
            is_whole: true,
        })
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Ledger").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

/// Encodes a ledger. The version of a file that may have changed undetected is `None`.
pub(crate) fn encode<'a>(
    file_versions: impl ExactSizeIterator<Item = Option<&'a FileVersion>>,
    stream: &[u8],
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_LEN + 10 + 24 * file_versions.len() + stream.len());
    bytes.extend_from_slice(MAGIC);
    bytes.push(VERSION);
    bytes.resize(HEAD_LEN, 0);
    put(&mut bytes, file_versions.len() as u64);
    for file_version in file_versions {
        bytes.push(u8::from(file_version.is_some()));
        let Some(FileVersion { device, inode, changed, .. }) = file_version else { continue };
        put(&mut bytes, *device);
        put(&mut bytes, *inode);
        put(&mut bytes, fold(changed.s));
        put(&mut bytes, u64::from(changed.ns));
    }
    bytes.extend_from_slice(stream);
    let check = ChunkId::of(&bytes[HEAD_LEN..]);
    bytes[MAGIC.len() + 1..HEAD_LEN].copy_from_slice(&check.0);
    bytes
}

/// Decodes the version of a file; `None` if its content must not be trusted.
fn file_version(cursor: &mut Cursor<'_>) -> Result<Option<Key>, DecodeError> {
    match cursor.byte()? {
        0 => return Ok(None),
        1 => {}
        _ => return Err(cursor.malformed("not a version")),
    }
    let identity = (cursor.number()?, cursor.number()?);
    let s = unfold(cursor.number()?);
    let ns = cursor.at_most(999_999_999, "not nanoseconds")? as u32;
    Ok(Some((identity, Timestamp { s, ns })))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty file `a`, modified at 1 s, in a root directory.
    const STREAM: &[u8] =
        b"meshtree\x01\x01\x00\x00\x00\x00\x00\x01a\x02\x00\x00\x00\x02\x00\x00\x00";

    fn file_version_of(changed: Timestamp) -> FileVersion {
        let modified = Timestamp { s: 1, ns: 0 };
        FileVersion { device: 300, inode: 5, size: 0, modified, changed }
    }

    fn sealed(rest: &[u8]) -> Vec<u8> {
        [MAGIC, &[VERSION][..], &ChunkId::of(rest).0, rest].concat()
    }

    #[test]
    fn a_ledger_has_the_documented_format() {
        let file_version = file_version_of(Timestamp { s: -1, ns: 200 });
        let expected = sealed(&[b"\x01\x01\xac\x02\x05\x01\xc8\x01", STREAM].concat());
        assert_eq!(encode([Some(&file_version)].into_iter(), STREAM), expected);
        assert_eq!(encode([None].into_iter(), STREAM), sealed(&[b"\x01\x00", STREAM].concat()));
        assert_eq!(Ledger::decode(&expected).map(|ledger| ledger.len()), Ok(1));
    }

    #[test]
    fn the_number_of_file_versions_must_equal_the_number_of_files() {
        let decode =
            |file_versions: &[u8]| Ledger::decode(&sealed(&[file_versions, STREAM].concat()));
        assert!(decode(b"\x01\x00").is_ok_and(|ledger| ledger.is_empty()));
        for file_versions in [&b"\x00"[..], b"\x02\x00\x00", b"\x01\x02", b"\x01", b"\x81\x00\x00"]
        {
            assert!(decode(file_versions).is_err(), "{file_versions:?}");
        }
        assert!(decode(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00").is_err());
        assert!(decode(b"\x01\x01\x01\x01\x01\x80\x94\xeb\xdc\x03").is_err(), "a whole second");
    }
}
