//! Combines listings and contents in the order of the tree.

use crate::content::file_reader::Content;
use crate::error::SnapshotError;
use crate::format::encode::{Writer, Xattrs};
use crate::format::limits::STREAM_LEN_MAX;
use crate::tree::attributes::{Extent, Kind};
use crate::walk::Listings;
use crate::walk::file_stat::FileStat;
use crate::walk::listing::{EntryKind, ListedEntry, Listing, join};
use std::collections::HashMap;

/// A file of a snapshot, under the name at which it was found first.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) stat: FileStat,
    pub(crate) xattrs: Xattrs,
    /// Index of its first extent. Its extents end before the first extent of the next file.
    pub(crate) first: u32,
    pub(crate) is_whole: bool,
    /// Index in `Assembly::directories`.
    directory: u32,
    name: Box<[u8]>,
}

/// The description of a tree, and the locations of its files.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) stream: Vec<u8>,
    /// In the order of the tree.
    pub(crate) files: Vec<File>,
    pub(crate) extents: Vec<Extent>,
    /// Paths of the directories.
    directories: Vec<Box<[u8]>>,
}

impl Assembly {
    pub(crate) fn path(&self, file: &File) -> Vec<u8> {
        join(&self.directories[file.directory as usize], &file.name)
    }

    /// Returns the extents of a file by its index.
    pub(crate) fn extents(&self, file: usize) -> &[Extent] {
        let end = self.files.get(file + 1).map_or(self.extents.len(), |next| next.first as usize);
        &self.extents[self.files[file].first as usize..end]
    }
}

struct Assembler {
    writer: Writer,
    assembly: Assembly,
    listings: Listings,
    contents: Vec<Option<Content>>,
    /// First names of files that may have more, by the number of the file.
    first_names: HashMap<u32, Vec<u8>>,
    /// Stack of open directories, from the root, with the names that are still to be added.
    open: Vec<(u32, std::vec::IntoIter<ListedEntry>)>,
}

/// Assembles a tree.
///
/// # Errors
/// The description exceeds its maximum length.
pub(crate) fn assemble(
    root: Listing,
    listings: Listings,
    contents: Vec<Option<Content>>,
) -> Result<Assembly, SnapshotError> {
    let mut assembler = Assembler {
        writer: Writer::new(&root.stat.metadata(), &root.xattrs),
        assembly: Assembly {
            stream: Vec::new(),
            files: Vec::new(),
            extents: Vec::new(),
            directories: Vec::new(),
        },
        listings,
        contents,
        first_names: HashMap::new(),
        open: Vec::new(),
    };
    assembler.open(root);
    while let Some((directory, names)) = assembler.open.last_mut() {
        let directory = *directory;
        match names.next() {
            Some(listed) => assembler.add(directory, listed),
            None => {
                assembler.writer.close();
                assembler.open.pop();
            }
        }
        if assembler.writer.len() > STREAM_LEN_MAX {
            return Err(SnapshotError::TooLarge);
        }
    }
    let mut assembly = assembler.assembly;
    assembly.stream = assembler.writer.finish();
    assembly.files.shrink_to_fit();
    assembly.extents.shrink_to_fit();
    Ok(assembly)
}

impl Assembler {
    /// Descends into a directory, whose node has been written.
    fn open(&mut self, listing: Listing) {
        let number = self.assembly.directories.len() as u32;
        self.assembly.directories.push(listing.path);
        self.open.push((number, listing.names.into_iter()));
    }

    fn add(&mut self, directory: u32, listed: ListedEntry) {
        let ListedEntry { name, stat, kind } = listed;
        match kind {
            EntryKind::Gone => {}
            EntryKind::File(number) => self.file(directory, name, number),
            EntryKind::Directory(None) => {
                self.node(&name, &stat);
                self.writer.close();
            }
            EntryKind::Directory(Some(inside)) => {
                // A directory without a listing vanished before it was listed.
                let Some(listing) = self.listings[inside as usize].take() else { return };
                self.writer.name(&name);
                let metadata = listing.stat.metadata();
                self.writer.node(Kind::Directory, &metadata, &listing.xattrs);
                self.open(listing);
            }
            EntryKind::Symlink(target) => {
                self.node(&name, &stat);
                self.writer.target(&target);
            }
            EntryKind::Special => {
                self.node(&name, &stat);
                if matches!(stat.kind, Kind::CharDevice | Kind::BlockDevice) {
                    self.writer.device(stat.device);
                }
            }
        }
    }

    fn node(&mut self, name: &[u8], stat: &FileStat) {
        self.writer.name(name);
        self.writer.node(stat.kind, &stat.metadata(), &Xattrs::new());
    }

    fn file(&mut self, directory: u32, name: Box<[u8]>, number: u32) {
        let Some(content) = self.contents[number as usize].take() else {
            if let Some(path) = self.first_names.get(&number) {
                self.writer.name(&name);
                self.writer.link(path);
            }
            return;
        };
        let Content { stat, xattrs, extents, is_whole } = content;
        self.writer.name(&name);
        self.writer.node(Kind::File, &stat.metadata(), &xattrs);
        self.writer.extents(&extents);
        if stat.has_links {
            let path = join(&self.assembly.directories[directory as usize], &name);
            self.first_names.insert(number, path);
        }
        let first = self.assembly.extents.len() as u32;
        self.assembly.extents.extend(extents);
        self.assembly.files.push(File { stat, xattrs, first, is_whole, directory, name });
    }
}
