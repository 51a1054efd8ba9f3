//! Writing a tree into a directory, on hosts on which nothing can be mounted.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_chunks::{ChunkId, Store, is_trusted, open_trusted};
use mesh_snapshot::{Kind, NodeId, Tree, is_unprivileged_xattr};
use rustix::fs::{FileType, Mode};

use crate::content::write_content;
use crate::directory::{Created, Directory};

/// Name of a file until it is complete.
const UNFINISHED: &[u8] = b".mesh-unfinished";

/// Reason why a tree could not be written or removed.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The directory contains files that Mesh has not written.
    #[error("{0:?} is not empty: use an empty directory, or one that does not exist")]
    NotEmpty(PathBuf),
    /// A directory with files of other programs has the name of a file to be written.
    #[error("{0:?} is a directory that contains other files: move it away, or sync elsewhere")]
    InTheWay(PathBuf),
    /// The directory belongs to another user and is therefore not safe from modification.
    #[error(
        "{0:?} belongs to user {1}, and this process runs as user {2}: \
         use a directory that user {2} or root owns"
    )]
    Foreign(PathBuf, u32, u32),
    /// A chunk is not in the store.
    #[error("chunk {1:?} of {0:?} is missing: fetch it again")]
    Missing(PathBuf, ChunkId),
    /// A system call failed.
    #[error("{0:?} cannot be written: {1}")]
    System(PathBuf, #[source] io::Error),
}

pub(crate) type Outcome<T> = Result<T, UnpackError>;

/// Opens a directory into which a tree is written, or creates it.
///
/// # Errors
///
/// The directory belongs to another user, the path contains a symbolic link of another user, or a
/// system call failed.
pub(crate) fn open_root(root: &Path) -> Outcome<Directory> {
    let mode = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    let directory = Directory::new(at(root, open_trusted(root, mode))?);
    let owner = at(root, directory.own_stat())?.st_uid;
    let user = rustix::process::geteuid().as_raw();
    if is_trusted(owner) {
        Ok(directory)
    } else {
        Err(UnpackError::Foreign(root.to_owned(), owner, user))
    }
}

/// A directory that contains a tree.
pub struct Unpacked {
    path: PathBuf,
    root: Directory,
    _lock: OwnedFd,
    is_made: bool,
    is_root: bool,
    tree: Option<Arc<Tree>>,
}

impl Unpacked {
    /// Opens an empty directory, or creates it.
    ///
    /// # Errors
    ///
    /// The directory is not empty or in use by another host, belongs to another user, or cannot be
    /// created.
    pub fn begin(path: &Path) -> Outcome<Self> {
        let is_made = !path.exists();
        let root = open_root(path)?;
        // Hosts that share a file system may be given the same directory at the same time.
        let lock = at(path, root.try_lock())?;
        let is_empty = at(path, root.names())?.is_empty();
        let (Some(lock), true) = (lock, is_empty) else {
            return Err(UnpackError::NotEmpty(path.to_owned()));
        };
        let is_root = rustix::process::geteuid().is_root();
        Ok(Self { path: path.to_owned(), root, _lock: lock, is_made, is_root, tree: None })
    }

    /// Writes a tree, or its differences from the previous one.
    ///
    /// A changed file is replaced by a new file: a process that has the old one open keeps reading
    /// it.
    ///
    /// # Errors
    ///
    /// A chunk is missing, or a system call failed, for example because the disk is full. The
    /// directory is then empty, and the next call writes the whole tree.
    pub fn show(&mut self, tree: Arc<Tree>, store: &Store) -> Outcome<()> {
        let old = self.tree.take();
        let writer = Writer {
            path: &self.path,
            root: &self.root,
            new: &tree,
            old: old.as_deref(),
            store,
            is_root: self.is_root,
        };
        let written = writer.write();
        if written.is_ok() {
            self.tree = Some(tree);
        } else {
            // The directory may contain a mixture of both trees.
            self.root.clear();
        }
        written
    }

    /// Removes everything that was written.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn close(self) -> Outcome<()> {
        self.root.clear();
        if self.is_made { at(&self.path, fs::remove_dir(&self.path)) } else { Ok(()) }
    }
}

struct Writer<'a> {
    /// Path of the root for errors.
    path: &'a Path,
    root: &'a Directory,
    new: &'a Tree,
    old: Option<&'a Tree>,
    store: &'a Store,
    is_root: bool,
}

/// State of hard links.
struct Links {
    /// For each node of the new tree that exists already, its path.
    ///
    /// If the file of an old node was kept for it, this node is the second element.
    first: Vec<Option<(Vec<u8>, Option<NodeId>)>>,
    /// Whether the file of a node of the old tree was kept.
    is_kept: Vec<bool>,
}

/// A directory to be written: its path, its node, and its node in the previous tree.
struct Place {
    /// Relative to the root.
    path: Vec<u8>,
    node: NodeId,
    old: Option<NodeId>,
}

/// An entry to be written.
struct Target<'a> {
    directory: &'a Directory,
    name: &'a [u8],
    /// Temporary name, which no entry of either tree has.
    unfinished: &'a [u8],
    /// Relative to the root.
    path: &'a [u8],
}

impl Writer<'_> {
    fn write(&self) -> Outcome<()> {
        let old = self.old.map(|_| Tree::ROOT);
        let mut todo = vec![Place { path: Vec::new(), node: Tree::ROOT, old }];
        let mut done = Vec::new();
        let is_kept = vec![false; self.old.map_or(0, Tree::len)];
        let mut links = Links { first: vec![None; self.new.len()], is_kept };
        while let Some(place) = todo.pop() {
            self.write_directory(&place, &mut todo, &mut links)?;
            done.push(place);
        }
        // Finish directories last: each entry changes the modification time of its directory, and
        // the final permissions may prevent writes.
        done.iter().rev().try_for_each(|place| {
            let directory = self.at(&place.path, self.root.beneath(&place.path))?;
            self.finish(&directory.into_created(), &place.path, place.node)
        })
    }

    fn write_directory(
        &self,
        place: &Place,
        todo: &mut Vec<Place>,
        links: &mut Links,
    ) -> Outcome<()> {
        let directory = self.at(&place.path, self.root.beneath(&place.path))?;
        if place.old.is_some() {
            let _ = directory.set_permissions(0o700);
        }
        self.remove_what_is_gone(&directory, place);
        let unfinished = self.unfinished(place);
        for (name, node) in self.new.children(place.node) {
            let kind = self.new.attributes(node).kind;
            if kind.is_device() {
                // In a mount, `nodev` prevents opening devices too.
                continue;
            }
            let path = joined(&place.path, name);
            let old = self.old.zip(place.old).and_then(|(tree, at)| {
                // An entry of another kind has been removed.
                tree.lookup(at, name).filter(|old| tree.attributes(*old).kind == kind)
            });
            if kind == Kind::Directory {
                if old.is_none() {
                    self.at(&path, directory.create_directory(name))?;
                }
                todo.push(Place { path, node, old });
            } else {
                let target =
                    Target { directory: &directory, name, unfinished: &unfinished, path: &path };
                self.write_entry(&target, node, old, links)?;
            }
        }
        Ok(())
    }

    fn remove_what_is_gone(&self, directory: &Directory, place: &Place) {
        let Some((tree, old)) = self.old.zip(place.old) else { return };
        for (name, node) in tree.children(old) {
            let now = self.new.lookup(place.node, name);
            let kind = tree.attributes(node).kind;
            if now.is_none_or(|now| self.new.attributes(now).kind != kind) {
                directory.remove_all(name);
            }
        }
    }

    /// Returns a temporary name that does not occur in the directory in either tree.
    fn unfinished(&self, place: &Place) -> Vec<u8> {
        let mut name = UNFINISHED.to_vec();
        let old = self.old.zip(place.old);
        while self.new.lookup(place.node, &name).is_some()
            || old.is_some_and(|(tree, at)| tree.lookup(at, &name).is_some())
        {
            name.push(b'~');
        }
        name
    }

    fn write_entry(
        &self,
        target: &Target<'_>,
        node: NodeId,
        old: Option<NodeId>,
        links: &mut Links,
    ) -> Outcome<()> {
        let Target { directory, name, unfinished, path } = *target;
        let same = old.filter(|old| self.is_same(*old, node));
        let made = match &links.first[node.0 as usize] {
            // The name is already a hard link to this file, not to another file with equal content.
            Some((_, kept)) if same.is_some() && *kept == same => return Ok(()),
            Some((first, _)) => {
                let linked = self.root.parent_of(first);
                let linked =
                    linked.and_then(|(from, name)| directory.link(unfinished, &from, name));
                self.at(path, linked)
            }
            None => {
                // If one old file becomes several files, it can be kept for one of them only.
                let kept = same.filter(|old| !links.is_kept[old.0 as usize]);
                links.first[node.0 as usize] = Some((path.to_owned(), kept));
                if let Some(kept) = kept {
                    links.is_kept[kept.0 as usize] = true;
                    return Ok(());
                }
                self.make(target, node)
            }
        };
        let placed = made.and_then(|()| self.at(path, directory.rename(unfinished, name)));
        if placed.is_err() {
            let _ = directory.remove_file(unfinished);
        }
        placed
    }

    fn is_same(&self, old: NodeId, new: NodeId) -> bool {
        self.old.is_some_and(|tree| {
            tree.attributes(old) == self.new.attributes(new)
                && tree.extents(old) == self.new.extents(new)
                && tree.target(old) == self.new.target(new)
                && tree.xattrs(old).eq(self.new.xattrs(new))
        })
    }

    fn make(&self, target: &Target<'_>, node: NodeId) -> Outcome<()> {
        let Target { directory, unfinished, path, .. } = *target;
        let special = |kind| {
            directory.create_special(unfinished, kind)?;
            directory.created(unfinished, kind)
        };
        let made = match self.new.attributes(node).kind {
            Kind::File => {
                let mut file = self.at(path, directory.create_file(unfinished))?;
                write_content(self.new, node, self.store, &mut file, &self.full(path))?;
                Ok(file.into())
            }
            Kind::Symlink => directory
                .create_symlink(unfinished, self.new.target(node))
                .and_then(|()| directory.created(unfinished, FileType::Symlink)),
            Kind::Fifo => special(FileType::Fifo),
            Kind::Socket => special(FileType::Socket),
            Kind::Directory | Kind::CharDevice | Kind::BlockDevice => return Ok(()),
        };
        self.finish(&self.at(path, made)?, path, node)
    }

    /// Sets the attributes of an entry.
    fn finish(&self, entry: &Created, path: &[u8], node: NodeId) -> Outcome<()> {
        let given = self.new.attributes(node);
        if self.is_root {
            self.at(path, entry.set_owner(given.uid, given.gid))?;
        }
        let xattrs = self.new.xattrs(node);
        for (name, value) in xattrs.filter(|(name, _)| is_unprivileged_xattr(name)) {
            // Some file systems do not support them, and some users may not set all of them.
            let _ = entry.set_xattr(name, value);
        }
        if given.kind != Kind::Symlink {
            let permissions = u32::from(given.unprivileged_permissions());
            self.at(path, entry.set_permissions(permissions))?;
        }
        self.at(path, entry.set_times(&given))
    }

    fn at<T>(&self, path: &[u8], done: io::Result<T>) -> Outcome<T> {
        done.map_err(|error| UnpackError::System(self.full(path), error))
    }

    /// Returns the full path, for messages.
    fn full(&self, path: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(path))
    }
}

/// Joins the path of a directory, relative to the root, and a name.
pub(crate) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

pub(crate) fn at<T>(path: &Path, done: io::Result<T>) -> Outcome<T> {
    done.map_err(|error| UnpackError::System(path.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_unpacked_by_one_host_only() {
        let shared = tempfile::tempdir().expect("a folder can be made");
        let first = Unpacked::begin(shared.path()).expect("it is empty");
        assert!(matches!(Unpacked::begin(shared.path()), Err(UnpackError::NotEmpty(_))));
        first.close().expect("it can be emptied");
        Unpacked::begin(shared.path()).expect("it is free again");
    }
}
