//! A snapshot, on the machine that has the files.

use crate::assembly::{Assembly, File, assemble};
use crate::content::file_reader::Content;
use crate::content::files::{Recall, read_files};
use crate::content::open_files::OpenFiles;
use crate::content::source::Source;
use crate::error::{ReadError, SnapshotError};
use crate::format::limits::CHUNK_LEN_MAX;
use crate::format::recipe::Description;
use crate::ledger::{self, Ledger};
use crate::options::Options;
use crate::tree::attributes::{Extent, Timestamp};
use crate::walk::file_stat::FileStat;
use crate::walk::root::{Root, is_gone};
use crate::walk::walk;
use mesh_chunks::ChunkId;
use rustix::fs::fstat;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// State of a directory at one time, with access to the bytes of its chunks.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use mesh_snapshot::{Options, Snapshot, Tree};
///
/// let directory = tempfile::tempdir()?;
/// std::fs::write(directory.path().join("hello"), "world")?;
/// let snapshot = Snapshot::take(directory.path(), &Options::default(), None)?;
/// let tree = Tree::decode(snapshot.stream())?;
/// let (chunk, _) = tree.chunks().next().ok_or("no chunk")?;
/// let mut bytes = Vec::new();
/// snapshot.read(&chunk, &mut bytes)?;
/// assert_eq!(bytes, b"world");
/// # Ok(())
/// # }
/// ```
pub struct Snapshot {
    root: Root,
    assembly: Assembly,
    description: Description,
    id: ChunkId,
    /// Start time of the snapshot. Files that changed later may have changed again undetected.
    begun: Timestamp,
    /// Indices of files, sorted by device and inode.
    by_identity: Vec<u32>,
    /// Indices of extents, sorted by the prefix of their chunk's id.
    by_chunk: Vec<(u64, u32)>,
    skipped: Vec<PathBuf>,
    reused: u64,
    /// Number of files that were read, and their total size in bytes.
    read: (u64, u64),
    open_files: OpenFiles,
}

/// Reason why an extent does not contain the expected chunk.
enum Miss {
    Changed,
    Failed(io::Error),
}

impl Snapshot {
    /// Takes a snapshot of a directory.
    ///
    /// Files whose metadata is the same as in `previous` are not read. Each file is captured as it
    /// was at one moment; of a file that grows continuously, the beginning is captured. Different
    /// files may be captured at different moments.
    ///
    /// # Errors
    /// The directory does not exist, a file in it cannot be read and is not skipped, a file changes
    /// during each attempt to read it, or an ignore pattern is invalid.
    pub fn take(
        root: &Path,
        options: &Options,
        previous: Option<&Self>,
    ) -> Result<Self, SnapshotError> {
        Self::take_with(root, options, &|stat| previous?.content(stat))
    }

    /// Takes a snapshot as [`take`](Self::take) does, with a [`Ledger`] of an earlier program.
    ///
    /// Files whose metadata is the same as in the ledger are not read.
    ///
    /// # Errors
    /// The same as for `take`.
    pub fn resume(root: &Path, options: &Options, ledger: &Ledger) -> Result<Self, SnapshotError> {
        Self::take_with(root, options, &|stat| ledger.content(stat))
    }

    fn take_with(
        root: &Path,
        options: &Options,
        recall: &Recall<'_>,
    ) -> Result<Self, SnapshotError> {
        let begun = now();
        let no_root = |source| SnapshotError::Root { path: root.to_owned(), source };
        let root = Root::open(root).map_err(no_root)?;
        let mut listings = walk(&root, options)?;
        let files = read_files(&root, options, &mut listings, recall)?;
        let mut skipped = files.skipped;
        for listing in listings.iter_mut().flatten() {
            skipped.append(&mut listing.skipped);
        }
        skipped.sort_unstable();
        let first = listings[0].take();
        let first = first.ok_or_else(|| no_root(io::ErrorKind::NotFound.into()))?;
        let mut assembly = assemble(first, listings, files.contents)?;
        let description = Description::new(std::mem::take(&mut assembly.stream));
        Ok(Self {
            by_identity: sorted_files(&assembly),
            by_chunk: sorted_chunks(&assembly.extents),
            id: ChunkId::of(description.recipe()),
            root,
            assembly,
            description,
            begun,
            skipped,
            reused: files.reused,
            read: files.read,
            open_files: OpenFiles::default(),
        })
    }

    /// Id of the whole snapshot. Equal ids mean that the trees are equal in all respects.
    pub fn id(&self) -> ChunkId {
        self.id
    }

    /// Description of the tree, for [`Tree::decode`](crate::Tree::decode).
    pub fn stream(&self) -> &[u8] {
        self.description.stream()
    }

    /// List of the chunks of the description, for [`Recipe::parse`](crate::Recipe::parse).
    pub fn recipe(&self) -> &[u8] {
        self.description.recipe()
    }

    /// Paths that were left out because they could not be read, sorted.
    ///
    /// A directory among them is part of the snapshot, but empty.
    pub fn skipped(&self) -> &[PathBuf] {
        &self.skipped
    }

    /// Number of files that were not read because they match a previous snapshot or a ledger.
    pub fn reused(&self) -> u64 {
        self.reused
    }

    /// Number of files that were read.
    pub fn files_read(&self) -> u64 {
        self.read.0
    }

    /// Total size in bytes of the files that were read, including holes.
    pub fn bytes_read(&self) -> u64 {
        self.read.1
    }

    /// Returns the records of its files, for [`Ledger::decode`] in a later program.
    pub fn ledger(&self) -> Vec<u8> {
        let files = self.assembly.files.iter();
        let file_versions = files.map(|file| self.is_sure(file).then_some(&file.stat.file_version));
        ledger::encode(file_versions, self.stream())
    }

    /// Replaces `into` with the bytes of a chunk of a file, of the description or of a recipe.
    ///
    /// The bytes are read from the file again, and verified. Thread-safe.
    ///
    /// # Errors
    /// The snapshot does not contain this chunk, or all files that contained it have changed.
    pub fn read(&self, chunk: &ChunkId, into: &mut Vec<u8>) -> Result<(), ReadError> {
        into.resize(CHUNK_LEN_MAX as usize, 0);
        let read = self.read_to(chunk, into);
        into.truncate(*read.as_ref().unwrap_or(&0));
        read.map(drop)
    }

    /// Reads a chunk as [`read`](Self::read) does, into the start of `buffer`; returns its length.
    ///
    /// # Errors
    /// The same as for `read`, and [`ReadError::BufferTooSmall`] if the chunk is longer than
    /// `buffer`.
    pub fn read_to(&self, chunk: &ChunkId, buffer: &mut [u8]) -> Result<usize, ReadError> {
        if let Some(bytes) = self.description.chunk(chunk) {
            let buffer = buffer.get_mut(..bytes.len()).ok_or(ReadError::BufferTooSmall)?;
            buffer.copy_from_slice(bytes);
            return Ok(bytes.len());
        }
        let front = front(chunk);
        let start = self.by_chunk.partition_point(|(other, _)| *other < front);
        let alike = self.by_chunk[start..].iter().take_while(|(other, _)| *other == front);
        let mut failure = ReadError::Unknown(*chunk);
        for (_, extent) in alike {
            if self.assembly.extents[*extent as usize].chunk != Some(*chunk) {
                continue;
            }
            match self.read_place(*extent, chunk, buffer) {
                Ok(len) => return Ok(len),
                Err(ReadError::BufferTooSmall) => return Err(ReadError::BufferTooSmall),
                Err(error) if matches!(failure, ReadError::Unknown(_)) => failure = error,
                Err(_) => {}
            }
        }
        Err(failure)
    }

    /// Reads an extent.
    fn read_place(
        &self,
        extent: u32,
        chunk: &ChunkId,
        buffer: &mut [u8],
    ) -> Result<usize, ReadError> {
        let file = self.assembly.files.partition_point(|file| file.first <= extent) - 1;
        let extents = &self.assembly.extents;
        let is_first = self.assembly.files[file].first == extent;
        let start = if is_first { 0 } else { extents[extent as usize - 1].end };
        let len = (extents[extent as usize].end - start) as usize;
        let into = buffer.get_mut(..len).ok_or(ReadError::BufferTooSmall)?;
        let was = &self.assembly.files[file];
        let path = self.assembly.path(was);
        let open = || self.root.file(&path);
        // Bytes of an unchanged file need not be verified here: the receiver verifies them.
        let is_sure = self.is_sure(was);
        let read = |file: &OwnedFd| {
            read_exactly(file, start, into)?;
            let is_as_it_was = is_sure
                && FileStat::new(&fstat(file).map_err(io::Error::from)?).file_version
                    == was.stat.file_version;
            if is_as_it_was || chunk.fits(into) { Ok(()) } else { Err(Miss::Changed) }
        };
        let read = self.open_files.with(file as u32, open, read).map(|()| len);
        read.map_err(|miss| match miss {
            Miss::Failed(source) if !is_gone(&source) => {
                ReadError::Unreadable { path: self.root.full(&path), source }
            }
            _ => ReadError::Changed { path: self.root.full(&path) },
        })
    }

    /// Returns whether equal metadata guarantees that the file has the same content.
    fn is_sure(&self, file: &File) -> bool {
        file.is_whole && file.stat.file_version.is_settled(self.begun)
    }

    /// Returns the content of a file, if it is known and guaranteed to be unchanged.
    pub(crate) fn content(&self, stat: &FileStat) -> Option<Content> {
        let files = &self.assembly.files;
        let identity_of = |file: &u32| files[*file as usize].stat.file_version.identity();
        let identity = stat.file_version.identity();
        let nth = self.by_identity.binary_search_by_key(&identity, identity_of).ok()?;
        let number = self.by_identity[nth] as usize;
        let file = &files[number];
        let is_same = file.stat.file_version == stat.file_version;
        (is_same && self.is_sure(file)).then(|| Content {
            stat: *stat,
            xattrs: file.xattrs.clone(),
            extents: self.assembly.extents(number).to_vec(),
            is_whole: true,
        })
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("Snapshot");
        fields.field("id", &self.id).field("files", &self.assembly.files.len());
        fields.finish_non_exhaustive()
    }
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Fills all of `into` with bytes of a file.
fn read_exactly(file: &OwnedFd, offset: u64, into: &mut [u8]) -> Result<(), Miss> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], offset + filled as u64)? {
            0 => return Err(Miss::Changed),
            read => filled += read,
        }
    }
    Ok(())
}

fn sorted_files(assembly: &Assembly) -> Vec<u32> {
    let mut files: Vec<u32> = (0..assembly.files.len() as u32).collect();
    files.sort_unstable_by_key(|file| assembly.files[*file as usize].stat.file_version.identity());
    files
}

fn sorted_chunks(extents: &[Extent]) -> Vec<(u64, u32)> {
    let chunks =
        extents.iter().zip(0..).filter_map(|(extent, nth)| Some((front(&extent.chunk?), nth)));
    let mut chunks: Vec<_> = chunks.collect();
    chunks.sort_unstable();
    chunks
}

/// Returns a prefix of a chunk's id, which is nearly unique.
fn front(chunk: &ChunkId) -> u64 {
    let (front, _) = chunk.0.split_first_chunk().expect("a name is longer than that");
    u64::from_be_bytes(*front)
}

/// Returns the timestamp that the file system would assign to a change at this moment.
fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { s: now.tv_sec, ns: now.tv_nsec.clamp(0, 999_999_999) as u32 }
}
