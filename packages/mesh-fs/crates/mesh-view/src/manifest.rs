//! Manifest of the files that were written into a directory, which is stored in that directory.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};

use mesh_chunks::ChunkId;
use mesh_snapshot::{DEPTH_MAX, STREAM_LEN_MAX, is_name};
use rustix::fs::{OFlags, Stat};

use crate::directory::Directory;

/// The manifest file, and its name while it is being written.
const FILE: &[u8] = b"names";
const UNFINISHED: &[u8] = b"names.unfinished";
/// Directory on the host that contains the manifest.
pub(crate) const OWN: &[u8] = b".mesh-workspace";

/// File type and format version.
const MAGIC: &[u8] = b"mesh-workspace 1\n";
/// Length of an entry after its name, in bytes.
const ENTRY_LEN: usize = 1 + 32 + 6 * 8;

/// An entry that was written into the directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) is_directory: bool,
    /// Hash of all properties that the entry was to have.
    pub(crate) id: ChunkId,
    /// Metadata after the write. `inode` is 0 until the write has completed.
    pub(crate) stamp: FileStamp,
}

/// Metadata that changes if the file is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileStamp {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(found: &Stat) -> Self {
        let signed = |number| i64::try_from(number).unwrap_or(0);
        Self {
            inode: found.st_ino,
            size: u64::try_from(found.st_size).unwrap_or(0),
            modified: (found.st_mtime, signed(found.st_mtime_nsec)),
            changed: (found.st_ctime, signed(found.st_ctime_nsec)),
        }
    }

    /// Returns whether the file with metadata `now` may be the file that was written.
    pub(crate) fn admits(&self, now: &Self) -> bool {
        let is_alike = self.size == now.size && self.modified == now.modified;
        is_alike && (self.inode == 0 || self == now)
    }
}

/// Paths relative to the directory, as bytes with slashes, and the entries that were written.
pub(crate) type Manifest = BTreeMap<Vec<u8>, Written>;

/// Reads the manifest in a directory.
///
/// A manifest that is damaged or belongs to another user is treated as empty.
pub(crate) fn read(own: &Directory) -> Manifest {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = own.trusted_file(FILE, OFlags::RDONLY)?;
        file.take(STREAM_LEN_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().ok().and_then(|bytes| decode(&bytes)).unwrap_or_default()
}

/// Returns the names in a manifest, or `None` if it is damaged or has an unsafe name.
pub fn names(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    decode(bytes).map(|manifest| manifest.into_keys().collect())
}

/// Replaces the manifest in a directory.
pub(crate) fn write(own: &Directory, manifest: &Manifest) -> io::Result<()> {
    let _ = own.remove_file(UNFINISHED);
    own.create_file(UNFINISHED)?.write_all(&encode(manifest))?;
    own.rename(UNFINISHED, FILE)
}

/// Returns whether a name is a path beneath the root that a tree can contain.
fn is_path(name: &[u8]) -> bool {
    let mut names = name.split(|byte| *byte == b'/');
    let depth = names.clone().count();
    depth <= DEPTH_MAX && names.clone().all(is_name) && names.next() != Some(OWN)
}

fn encode(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (name, Written { is_directory, id, stamp }) in manifest {
        let len = u32::try_from(name.len()).expect("a path is shorter than that");
        bytes.extend(len.to_le_bytes());
        bytes.extend(name);
        bytes.push(u8::from(*is_directory));
        bytes.extend(id.0);
        bytes.extend(stamp.inode.to_le_bytes());
        bytes.extend(stamp.size.to_le_bytes());
        for part in [stamp.modified.0, stamp.modified.1, stamp.changed.0, stamp.changed.1] {
            bytes.extend(part.to_le_bytes());
        }
    }
    let sum = ChunkId::of(&bytes);
    bytes.extend(sum.0);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Manifest> {
    let (body, sum) = bytes.split_last_chunk::<32>()?;
    if ChunkId::of(body).0 != *sum {
        return None;
    }
    let mut rest = body.strip_prefix(MAGIC)?;
    let mut manifest = Manifest::new();
    while !rest.is_empty() {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        let (name, behind) = behind.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let (entry, behind) = behind.split_first_chunk::<ENTRY_LEN>()?;
        rest = behind;
        let (id, numbers) = entry[1..].split_first_chunk::<32>()?;
        let (numbers, _) = numbers.as_chunks::<8>();
        let signed = |nth: usize| i64::from_le_bytes(numbers[nth]);
        let stamp = FileStamp {
            inode: u64::from_le_bytes(numbers[0]),
            size: u64::from_le_bytes(numbers[1]),
            modified: (signed(2), signed(3)),
            changed: (signed(4), signed(5)),
        };
        let is_directory = match entry[0] {
            0 => false,
            1 => true,
            _ => return None,
        };
        if !is_path(name) || manifest.last_key_value().is_some_and(|(last, _)| **last >= *name) {
            return None;
        }
        manifest.insert(name.to_vec(), Written { is_directory, id: ChunkId(*id), stamp });
    }
    Some(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let stamp = FileStamp { inode: 7, size: 8, modified: (-9, 10), changed: (11, 12) };
        let written = |is_directory| Written { is_directory, id: ChunkId::of(b"some"), stamp };
        [(b"folder".to_vec(), written(true)), (b"folder/\xff".to_vec(), written(false))].into()
    }

    #[test]
    fn a_manifest_round_trips() {
        assert_eq!(decode(&encode(&sample())), Some(sample()));
        assert_eq!(decode(&encode(&Manifest::new())), Some(Manifest::new()));
    }

    #[test]
    fn a_manifest_with_a_hostile_name_is_refused() {
        let written = *sample().values().next().expect("it has entries");
        for name in ["", "/etc/passwd", "../outside", "a/../../b", "a//b", "a/", ".", "a\0"] {
            let hostile = Manifest::from([(name.as_bytes().to_vec(), written)]);
            assert_eq!(decode(&encode(&hostile)), None, "{name:?}");
        }
        for name in [".mesh-workspace", ".mesh-workspace/lock"] {
            let hostile = Manifest::from([(name.as_bytes().to_vec(), written)]);
            assert_eq!(decode(&encode(&hostile)), None, "{name:?}");
        }
    }

    #[test]
    fn a_damaged_manifest_is_refused() {
        let bytes = encode(&sample());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None);
            assert_eq!(decode(&bytes[..at]), None);
        }
    }
}
