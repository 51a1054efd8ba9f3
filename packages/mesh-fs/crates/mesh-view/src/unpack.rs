//! A tree written into a directory, where nothing can be mounted.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_chunks::{ChunkId, Store};
use mesh_snapshot::{Attributes, Kind, NodeId, Tree, is_unprivileged_xattr};
use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::content::{set_times, write_content};

/// What a file is called while it is written; it takes its own name when it is whole.
const UNFINISHED: &[u8] = b".mesh-unfinished";

/// Why a tree could not be written, or not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// There is something in the directory that is not ours.
    #[error("{0:?} is not empty: name a directory that is, or does not exist")]
    NotEmpty(PathBuf),
    /// There is a directory of somebody else where a file has to go.
    #[error("{0:?} is a directory that holds files of others: move it away, or sync elsewhere")]
    InTheWay(PathBuf),
    /// A chunk is not in the store.
    #[error("chunk {1:?} of {0:?} is missing: fetch it again")]
    Missing(PathBuf, ChunkId),
    /// The system refused.
    #[error("{0:?} cannot be written: {1}")]
    System(PathBuf, #[source] io::Error),
}

pub(crate) type Outcome<T> = Result<T, UnpackError>;

/// A directory that holds a tree.
pub struct Unpacked {
    root: PathBuf,
    is_made: bool,
    is_root: bool,
    tree: Option<Arc<Tree>>,
}

impl Unpacked {
    /// Takes a directory that is empty, or makes it.
    ///
    /// # Errors
    ///
    /// It is not empty, or cannot be made.
    pub fn begin(root: &Path) -> Outcome<Self> {
        let is_made = !root.exists();
        at(root, fs::create_dir_all(root))?;
        if at(root, fs::read_dir(root))?.next().is_some() {
            return Err(UnpackError::NotEmpty(root.to_owned()));
        }
        let is_root = rustix::process::geteuid().is_root();
        Ok(Self { root: root.to_owned(), is_made, is_root, tree: None })
    }

    /// Writes a tree, or what is different from the one before.
    ///
    /// A file that is different is replaced by another one: who has it open reads on in the old.
    ///
    /// # Errors
    ///
    /// A chunk is missing, or the system refused, as where the disk is full. Nothing is left in the
    /// directory then, and another call begins anew.
    pub fn show(&mut self, tree: Arc<Tree>, store: &Store) -> Outcome<()> {
        let old = self.tree.take();
        let writer = Writer { new: &tree, old: old.as_deref(), store, is_root: self.is_root };
        let written = writer.write(&self.root);
        if written.is_ok() {
            self.tree = Some(tree);
        } else {
            // What is there may be of either tree.
            clear(&self.root);
        }
        written
    }

    /// Removes what was written.
    ///
    /// # Errors
    ///
    /// The system refused.
    pub fn close(self) -> Outcome<()> {
        clear(&self.root);
        if self.is_made { at(&self.root, fs::remove_dir(&self.root)) } else { Ok(()) }
    }
}

/// Removes what is in a directory, as far as the system lets us.
fn clear(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        remove(&entry.path());
    }
}

fn remove(path: &Path) {
    let Ok(found) = fs::symlink_metadata(path) else { return };
    if found.is_dir() {
        // One that may not be written would keep what is in it.
        let _ = fs::set_permissions(path, Permissions::from_mode(0o700));
        clear(path);
        let _ = fs::remove_dir(path);
    } else {
        let _ = fs::remove_file(path);
    }
}

struct Writer<'a> {
    new: &'a Tree,
    old: Option<&'a Tree>,
    store: &'a Store,
    is_root: bool,
}

/// What has been done so far about files with several names.
struct Links {
    /// Under which name each node of the new tree is there already, and the node of the old tree
    /// that was kept for it.
    first: Vec<Option<(PathBuf, Option<NodeId>)>>,
    /// Which nodes of the old tree were kept.
    is_kept: Vec<bool>,
}

/// A directory that is written: here, in the tree, and in the tree before.
struct Place {
    path: PathBuf,
    node: NodeId,
    old: Option<NodeId>,
}

impl Writer<'_> {
    fn write(&self, root: &Path) -> Outcome<()> {
        let old = self.old.map(|_| Tree::ROOT);
        let mut todo = vec![Place { path: root.to_owned(), node: Tree::ROOT, old }];
        let mut done = Vec::new();
        let is_kept = vec![false; self.old.map_or(0, Tree::len)];
        let mut links = Links { first: vec![None; self.new.len()], is_kept };
        while let Some(place) = todo.pop() {
            self.remove_what_is_gone(&place)?;
            for (name, node) in self.new.children(place.node) {
                let path = place.path.join(OsStr::from_bytes(name));
                let kind = self.new.attributes(node).kind;
                if kind.is_device() {
                    // A mount shows it, but nobody can open it there.
                    continue;
                }
                let old = self.old.zip(place.old).and_then(|(tree, at)| {
                    // What was of another kind has been removed.
                    tree.lookup(at, name).filter(|old| tree.attributes(*old).kind == kind)
                });
                if kind == Kind::Directory {
                    if old.is_none() {
                        at(&path, fs::create_dir(&path))?;
                    } else {
                        let _ = fs::set_permissions(&path, Permissions::from_mode(0o700));
                    }
                    todo.push(Place { path, node, old });
                } else {
                    let unfinished = self.unfinished(&place);
                    self.write_entry(&path, &unfinished, node, old, &mut links)?;
                }
            }
            done.push(place);
        }
        // Last, as each entry changes the time of its directory; and it may not be writable then.
        done.iter().rev().try_for_each(|place| self.finish(&place.path, place.node))
    }

    fn remove_what_is_gone(&self, place: &Place) -> Outcome<()> {
        let Some((tree, old)) = self.old.zip(place.old) else { return Ok(()) };
        for (name, node) in tree.children(old) {
            let now = self.new.lookup(place.node, name);
            let kind = tree.attributes(node).kind;
            if now.is_none_or(|now| self.new.attributes(now).kind != kind) {
                remove(&place.path.join(OsStr::from_bytes(name)));
            }
        }
        Ok(())
    }

    /// Gives a path in a directory that nothing in either tree has.
    fn unfinished(&self, place: &Place) -> PathBuf {
        let mut name = UNFINISHED.to_vec();
        let old = self.old.zip(place.old);
        while self.new.lookup(place.node, &name).is_some()
            || old.is_some_and(|(tree, at)| tree.lookup(at, &name).is_some())
        {
            name.push(b'~');
        }
        place.path.join(OsStr::from_bytes(&name))
    }

    fn write_entry(
        &self,
        path: &Path,
        unfinished: &Path,
        node: NodeId,
        old: Option<NodeId>,
        links: &mut Links,
    ) -> Outcome<()> {
        let same = old.filter(|old| self.is_same(*old, node));
        let made = match &links.first[node.0 as usize] {
            // It is the same file already, and not only a file that is like it.
            Some((_, kept)) if same.is_some() && *kept == same => return Ok(()),
            Some((first, _)) => at(path, fs::hard_link(first, unfinished)),
            None => {
                // What was one file and is several now can be kept for one of them.
                let kept = same.filter(|old| !links.is_kept[old.0 as usize]);
                links.first[node.0 as usize] = Some((path.to_owned(), kept));
                if let Some(kept) = kept {
                    links.is_kept[kept.0 as usize] = true;
                    return Ok(());
                }
                self.make(unfinished, path, node)
            }
        };
        let placed = made.and_then(|()| at(path, fs::rename(unfinished, path)));
        if placed.is_err() {
            let _ = fs::remove_file(unfinished);
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

    fn make(&self, path: &Path, name: &Path, node: NodeId) -> Outcome<()> {
        let Attributes { kind, .. } = self.new.attributes(node);
        let mode = Mode::from_raw_mode(0o600);
        match kind {
            Kind::File => write_content(self.new, node, self.store, path, name)?,
            Kind::Symlink => {
                at(path, symlink(OsStr::from_bytes(self.new.target(node)), path))?;
            }
            Kind::Fifo | Kind::Socket => {
                let special = if kind == Kind::Fifo { FileType::Fifo } else { FileType::Socket };
                let made = rustix::fs::mknodat(CWD, path, special, mode, 0);
                at(path, made.map_err(io::Error::from))?;
            }
            Kind::Directory | Kind::CharDevice | Kind::BlockDevice => {}
        }
        self.finish(path, node)
    }

    /// Gives an entry its attributes.
    fn finish(&self, path: &Path, node: NodeId) -> Outcome<()> {
        let given = self.new.attributes(node);
        if self.is_root {
            at(path, lchown(path, Some(given.uid), Some(given.gid)))?;
        }
        let xattrs = self.new.xattrs(node);
        for (name, value) in xattrs.filter(|(name, _)| is_unprivileged_xattr(name)) {
            // Not every file system has them, and not every user may set all.
            let _ =
                rustix::fs::lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty());
        }
        if given.kind != Kind::Symlink {
            let permissions = Permissions::from_mode(u32::from(given.unprivileged_permissions()));
            at(path, fs::set_permissions(path, permissions))?;
        }
        set_times(path, &given)
    }
}

pub(crate) fn at<T>(path: &Path, done: io::Result<T>) -> Outcome<T> {
    done.map_err(|error| UnpackError::System(path.to_owned(), error))
}
