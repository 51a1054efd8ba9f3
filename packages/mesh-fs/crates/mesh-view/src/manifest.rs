//! What was written into a directory, as it is remembered there.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mesh_chunks::ChunkId;

/// Bytes before the entries: whose file it is, and in which form.
const MAGIC: &[u8] = b"mesh-workspace 1\n";
/// Bytes of an entry behind its name.
const ENTRY_LEN: usize = 1 + 32 + 6 * 8;

/// What one name in the directory was made to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) is_directory: bool,
    /// The hash of all that was asked for.
    pub(crate) id: ChunkId,
    /// How it looked then; `inode` is 0 while it is not certain that it was written.
    pub(crate) look: Look,
}

/// How a file looks without being read: what changes when somebody writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Look {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl Look {
    pub(crate) fn of(found: &Metadata) -> Self {
        Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }

    /// Whether what is there now can be what was meant: then it is ours.
    pub(crate) fn admits(&self, now: &Self) -> bool {
        let is_alike = self.size == now.size && self.modified == now.modified;
        is_alike && (self.inode == 0 || self == now)
    }
}

/// Names below the directory, as bytes with slashes, and what they were made to be.
pub(crate) type Manifest = BTreeMap<Vec<u8>, Written>;

/// Reads one; what is damaged or not there is as if nothing had been written.
pub(crate) fn read(path: &Path) -> Manifest {
    fs::read(path).ok().and_then(|bytes| decode(&bytes)).unwrap_or_default()
}

/// Puts one in the place of the one before.
pub(crate) fn write(path: &Path, manifest: &Manifest) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, encode(manifest))?;
    fs::rename(&unfinished, path)
}

fn encode(manifest: &Manifest) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for (name, Written { is_directory, id, look }) in manifest {
        let len = u32::try_from(name.len()).expect("a path is shorter than that");
        bytes.extend(len.to_le_bytes());
        bytes.extend(name);
        bytes.push(u8::from(*is_directory));
        bytes.extend(id.0);
        bytes.extend(look.inode.to_le_bytes());
        bytes.extend(look.size.to_le_bytes());
        for part in [look.modified.0, look.modified.1, look.changed.0, look.changed.1] {
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
        let look = Look {
            inode: u64::from_le_bytes(numbers[0]),
            size: u64::from_le_bytes(numbers[1]),
            modified: (signed(2), signed(3)),
            changed: (signed(4), signed(5)),
        };
        let written = Written { is_directory: entry[0] != 0, id: ChunkId(*id), look };
        manifest.insert(name.to_vec(), written);
    }
    Some(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Manifest {
        let look = Look { inode: 7, size: 8, modified: (-9, 10), changed: (11, 12) };
        let written = |is_directory| Written { is_directory, id: ChunkId::of(b"some"), look };
        [(b"folder".to_vec(), written(true)), (b"folder/\xff".to_vec(), written(false))].into()
    }

    #[test]
    fn what_was_written_is_read() {
        assert_eq!(decode(&encode(&sample())), Some(sample()));
        assert_eq!(decode(&encode(&Manifest::new())), Some(Manifest::new()));
    }

    #[test]
    fn what_is_damaged_says_nothing() {
        let bytes = encode(&sample());
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode(&damaged), None);
            assert_eq!(decode(&bytes[..at]), None);
        }
    }
}
