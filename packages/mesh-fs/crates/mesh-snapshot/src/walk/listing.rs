//! Listing of one directory.

use crate::content::source::Source;
use crate::error::SnapshotError;
use crate::format::encode::Xattrs;
use crate::format::limits::NAME_LEN_MAX;
use crate::options::Options;
use crate::tree::attributes::Kind;
use crate::walk::file_stat::FileStat;
use crate::walk::ignores::Ignores;
use crate::walk::root::{NameStat, Root, is_gone, stat_name};
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// Maximum number of times a directory is listed if it changes during the listing.
const LISTING_MAX: usize = 4;
/// Maximum length of an ignore file in bytes.
const PATTERNS_LEN_MAX: u64 = 1 << 20;
/// Size in bytes of the buffer for reading directory entries.
const NAMES_LEN: usize = 32 << 10;

/// A directory and its names, sorted.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) path: Box<[u8]>,
    pub(crate) stat: FileStat,
    pub(crate) xattrs: Xattrs,
    pub(crate) names: Vec<ListedEntry>,
    /// Paths whose metadata could not be read.
    pub(crate) skipped: Vec<PathBuf>,
    /// The patterns that apply inside the directory.
    pub(crate) ignores: Arc<Ignores>,
}

/// A name in a directory, and the metadata of its node.
#[derive(Debug)]
pub(crate) struct ListedEntry {
    pub(crate) name: Box<[u8]>,
    pub(crate) stat: FileStat,
    pub(crate) kind: EntryKind,
}

/// Properties of a name that depend on its kind.
#[derive(Debug)]
pub(crate) enum EntryKind {
    /// A directory: the number of its listing, or `None` if it is not descended into.
    Directory(Option<u32>),
    /// A file: its number among the files to be read.
    File(u32),
    Symlink(Box<[u8]>),
    /// A pipe, a socket or a device.
    Special,
    /// The file vanished after it was listed.
    Gone,
}

/// A directory that is to be listed.
#[derive(Debug)]
pub(crate) struct PendingDirectory {
    pub(crate) path: Box<[u8]>,
    /// Metadata from the listing of its parent.
    pub(crate) stat: FileStat,
    /// The patterns that apply in its parent.
    pub(crate) ignores: Arc<Ignores>,
    /// Number of the parent's listing and index of the name in it; `None` for the root.
    pub(crate) location: Option<(u32, u32)>,
}

/// Result of listing a directory.
#[derive(Debug)]
pub(crate) enum Found {
    Listing(Listing),
    /// The name has been replaced by something that is not a directory.
    Replaced(NameStat),
    Gone,
}

impl ListedEntry {
    pub(crate) fn new(name: &[u8], (stat, target): NameStat) -> Self {
        let kind = match (stat.kind, target) {
            (Kind::Directory, _) => EntryKind::Directory(None),
            (Kind::File, _) => EntryKind::File(u32::MAX),
            (_, Some(target)) => EntryKind::Symlink(target),
            _ => EntryKind::Special,
        };
        Self { name: name.into(), stat, kind }
    }
}

/// Joins the path of a directory and a name.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
    path.extend_from_slice(directory);
    if !directory.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Lists a directory, and repeats the listing if the directory changes during it.
///
/// # Errors
/// The directory or a file in it cannot be read and is not skipped.
pub(crate) fn list(
    root: &Root,
    options: &Options,
    pending: &PendingDirectory,
) -> Result<Found, SnapshotError> {
    let path = &pending.path;
    for _ in 1..LISTING_MAX {
        match list_strictly(root, options, pending) {
            Err(SnapshotError::Unreadable { source, .. }) if is_gone(&source) => {}
            Err(SnapshotError::Unreadable { path: unreadable, .. })
                if options.skip_unreadable && !path.is_empty() =>
            {
                // The parent lists the directory, so it exists; represent it as empty.
                return Ok(Found::Listing(Listing {
                    path: path.clone(),
                    stat: pending.stat,
                    xattrs: Xattrs::new(),
                    names: Vec::new(),
                    skipped: vec![unreadable],
                    ignores: Arc::clone(&pending.ignores),
                }));
            }
            other => return other.map(Found::Listing),
        }
        let unreadable = |source| SnapshotError::Unreadable { path: root.full(path), source };
        match root.stat_name(path).map_err(unreadable)? {
            None => return Ok(Found::Gone),
            // Another directory has the name now: list that one.
            Some((stat, _)) if stat.kind == Kind::Directory => {}
            Some(stat_name) => return Ok(Found::Replaced(stat_name)),
        }
    }
    // A directory that repeatedly appears and vanishes did not exist at one of these times.
    Ok(Found::Gone)
}

fn list_strictly(
    root: &Root,
    options: &Options,
    pending: &PendingDirectory,
) -> Result<Listing, SnapshotError> {
    let path = &pending.path;
    let unreadable = |source| SnapshotError::Unreadable { path: root.full(path), source };
    let directory = root.directory(path).map_err(unreadable)?;
    let lister = Lister { root, options, pending, directory: &directory };
    let mut stat = directory.stat().map_err(unreadable)?;
    for _ in 1..LISTING_MAX {
        let listing = lister.list(stat)?;
        let after = directory.stat().map_err(unreadable)?;
        if after.file_version == stat.file_version {
            return Ok(listing);
        }
        stat = after;
    }
    // For a directory that changes continuously, accept the state at one of these times.
    lister.list(stat)
}

/// Lists a directory once.
struct Lister<'a> {
    root: &'a Root,
    options: &'a Options,
    pending: &'a PendingDirectory,
    directory: &'a OwnedFd,
}

impl Lister<'_> {
    fn list(&self, stat: FileStat) -> Result<Listing, SnapshotError> {
        let names = self.names().map_err(|source| self.unreadable(b"", source))?;
        let ignores = self.ignores(&names)?;
        let mut listing = Listing {
            path: self.pending.path.clone(),
            stat,
            xattrs: self.directory.xattrs(),
            names: Vec::with_capacity(names.len()),
            skipped: Vec::new(),
            ignores,
        };
        for (name, kind) in names {
            match self.stat_unless_ignored(&listing.ignores, &name, kind) {
                Ok(listed) => listing.names.extend(listed),
                Err(SnapshotError::Unreadable { path, .. }) if self.options.skip_unreadable => {
                    listing.skipped.push(path);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }

    /// Returns all names, sorted.
    fn names(&self) -> io::Result<Vec<(Box<[u8]>, FileType)>> {
        rustix::fs::seek(self.directory, rustix::fs::SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); NAMES_LEN];
        let mut entries = RawDir::new(self.directory, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push((name.into(), entry.file_type()));
            }
        }
        names.sort_unstable_by(|(one, _): &(Box<[u8]>, _), (other, _)| one.cmp(other));
        // A name that moves during the listing may occur twice.
        names.dedup_by(|(one, _), (other, _)| one == other);
        Ok(names)
    }

    /// Returns the patterns that apply in this directory.
    fn ignores(&self, names: &[(Box<[u8]>, FileType)]) -> Result<Arc<Ignores>, SnapshotError> {
        let mut ignores = Arc::clone(&self.pending.ignores);
        for file in &self.options.ignore_files {
            let is_there = names.binary_search_by(|(name, _)| name[..].cmp(file.as_bytes()));
            if is_there.is_err() {
                continue;
            }
            let path = join(&self.pending.path, file.as_bytes());
            match self.text(&path) {
                Ok(Some(text)) => {
                    let location = self.root.full(&path);
                    ignores = Ignores::with(&ignores, &self.pending.path, &text, &location)?;
                }
                Ok(None) => {}
                Err(source) => return Err(self.unreadable(file.as_bytes(), source)),
            }
        }
        Ok(ignores)
    }

    /// Reads an ignore file, if it is a regular file.
    fn text(&self, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let file = match self.root.file(path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if file.stat()?.kind != Kind::File {
            return Ok(None);
        }
        let mut text = Vec::new();
        let limit = PATTERNS_LEN_MAX + 1;
        File::from(file).take(limit).read_to_end(&mut text)?;
        if text.len() as u64 == limit { Err(Errno::FBIG.into()) } else { Ok(Some(text)) }
    }

    /// Reads the metadata of a name, unless it is excluded or vanished.
    fn stat_unless_ignored(
        &self,
        ignores: &Ignores,
        name: &[u8],
        kind: FileType,
    ) -> Result<Option<ListedEntry>, SnapshotError> {
        let path = join(&self.pending.path, name);
        let is_known = kind != FileType::Unknown;
        // Skip the system call for excluded names if the kernel has returned their type.
        if is_known && ignores.excludes(&path, kind == FileType::Directory) {
            return Ok(None);
        }
        if name.len() > NAME_LEN_MAX {
            return Err(self.unreadable(name, Errno::NAMETOOLONG.into()));
        }
        let stat_name = stat_name(self.directory.as_fd(), name);
        let Some(stat_name) = stat_name.map_err(|source| self.unreadable(name, source))? else {
            return Ok(None);
        };
        if !is_known && ignores.excludes(&path, stat_name.0.kind == Kind::Directory) {
            return Ok(None);
        }
        Ok(Some(ListedEntry::new(name, stat_name)))
    }

    fn unreadable(&self, name: &[u8], source: io::Error) -> SnapshotError {
        let path = if name.is_empty() {
            self.pending.path.to_vec()
        } else {
            join(&self.pending.path, name)
        };
        SnapshotError::Unreadable { path: self.root.full(&path), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists a path as a directory, although it may have been replaced.
    fn list_again(root: &Root, path: &[u8]) -> Found {
        let stat = root.directory(b"").and_then(|root| root.stat()).expect("it is there");
        let ignores = Arc::new(Ignores::new(&[]).expect("there is no pattern"));
        let pending = PendingDirectory { path: path.into(), stat, ignores, location: Some((0, 0)) };
        list(root, &Options::default(), &pending).expect("nothing is unreadable")
    }

    #[test]
    fn a_directory_replaced_by_a_file_or_link_is_reported() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "").expect("a file");
        std::os::unix::fs::symlink("target", path("link")).expect("a link");
        std::fs::create_dir(path("directory")).expect("a directory");
        let root = Root::open(directory.path()).expect("it is there");
        let file = list_again(&root, b"file");
        assert!(matches!(file, Found::Replaced((stat, None)) if stat.kind == Kind::File));
        let link = list_again(&root, b"link");
        assert!(matches!(link, Found::Replaced((_, Some(target))) if *target == *b"target"));
        assert!(matches!(list_again(&root, b"nothing"), Found::Gone));
        assert!(matches!(list_again(&root, b"file/inside"), Found::Gone));
        let inside = list_again(&root, b"directory");
        assert!(matches!(inside, Found::Listing(listing) if listing.names.is_empty()));
    }
}
