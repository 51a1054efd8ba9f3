//! Repeated writing of trees into a directory that also contains other files.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use mesh_chunks::{ChunkId, Store};
use mesh_snapshot::{Attributes, Kind, NodeId, Tree};
use rustix::fs::{FileType, FlockOperation, OFlags, Stat};

use crate::compiled_modules::CompiledModules;
use crate::content::write_content;
use crate::directory::{Created, Directory, is_directory};
use crate::manifest::{self, FileStamp, Manifest, OWN, Written};
use crate::unpack::{Outcome, UnpackError, at, joined, open_root};

/// Temporary name of a file. Files are written one at a time, so one name suffices.
const UNFINISHED: &[u8] = b".mesh-unfinished";
/// A process that writes into the directory holds a lock on this file in `OWN`.
const LOCK: &[u8] = b"lock";
/// Permissions that the owner of a file or directory always gets.
const FILE_MODE_MIN: u32 = 0o600;
const DIRECTORY_MODE_MIN: u32 = 0o700;

/// Changes that an update has made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Number of files and links that were created or replaced.
    pub written: u64,
    /// Number of files and links that were removed.
    pub removed: u64,
    /// Number of written or removed files and links that another program had created or changed.
    pub overwritten: u64,
    /// Total size in bytes of the files that were written.
    pub bytes: u64,
}

/// A directory into which trees are written, and which may contain other files as well.
///
/// The list of written files is stored in the directory itself, so another process can continue
/// after this one has exited or was killed.
pub struct Workspace {
    path: PathBuf,
    root: Directory,
}

/// The directory with the manifest, locked for this process.
struct LockedDirectory {
    own: Directory,
    _lock: File,
}

impl Workspace {
    /// Opens a directory, or creates it.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or written, or it belongs to another user.
    pub fn open(path: &Path) -> Outcome<Self> {
        let workspace = Self { path: path.to_owned(), root: open_root(path)? };
        workspace.own().map(|_| workspace)
    }

    /// Returns the chunks that an update would write now, without duplicates.
    ///
    /// # Errors
    ///
    /// A system call failed.
    pub fn needed(&self, tree: &Tree) -> Outcome<Vec<ChunkId>> {
        let locked = self.lock()?;
        let before = manifest::read(&locked.own);
        let steps = Plan::new(&self.root, tree, &before).steps;
        let mut seen = HashSet::new();
        let extents = steps.iter().flat_map(|step| tree.extents(step.node));
        Ok(extents.filter_map(|extent| extent.chunk).filter(|chunk| seen.insert(*chunk)).collect())
    }

    /// Writes the files that differ from the tree, and removes files of earlier updates that are
    /// not in it.
    ///
    /// Files of other programs are kept unless the tree contains the same name. A changed file is
    /// replaced by a new file: a process that has the old one open keeps reading it.
    ///
    /// # Errors
    ///
    /// A chunk is missing, a directory with files of other programs has the name of a file, or a
    /// system call failed. Files that were written are kept, and the next call continues.
    pub fn update(&self, tree: &Tree, store: &Store) -> Outcome<Synced> {
        let locked = self.lock()?;
        let mut names = manifest::read(&locked.own);
        let plan = Plan::new(&self.root, tree, &names);
        if plan.steps.is_empty() && plan.gone.is_empty() {
            return Ok(Synced::default());
        }
        // Record all names first: if this process is killed, the next one must know which files may
        // be ours.
        for step in plan.steps.iter().filter(|step| step.is_remembered()) {
            names.insert(step.name.clone(), step.intended(tree));
        }
        self.remember(&locked, &names)?;
        let synced = Synced::default();
        let mut update = Update { path: &self.path, root: &self.root, tree, store, names, synced };
        let done = update.remove(&plan.gone).and_then(|()| update.write(&plan.steps));
        let remembered = self.remember(&locked, &update.names);
        done.and(remembered).map(|()| update.synced)
    }

    fn remember(&self, locked: &LockedDirectory, names: &Manifest) -> Outcome<()> {
        at(&self.path.join(OsStr::from_bytes(OWN)), manifest::write(&locked.own, names))
    }

    /// Opens the directory with the manifest, or creates it.
    fn own(&self) -> Outcome<Directory> {
        let path = self.path.join(OsStr::from_bytes(OWN));
        match self.root.create_directory(OWN) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => at(&path, Err(error))?,
            _ => {}
        }
        let own = at(&path, self.root.child(OWN))?;
        let stat = at(&path, own.own_stat())?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user {
            return Err(UnpackError::Foreign(path, stat.st_uid, user));
        }
        if stat.st_mode & 0o077 != 0 {
            // Prevent other users from opening and holding the lock.
            at(&path, own.set_permissions(0o700))?;
        }
        Ok(own)
    }

    /// Waits for exclusive write access to the directory, which ends when the result is dropped.
    fn lock(&self) -> Outcome<LockedDirectory> {
        let path = self.path.join(OsStr::from_bytes(OWN)).join(OsStr::from_bytes(LOCK));
        let own = self.own()?;
        let file = at(&path, own.trusted_file(LOCK, OFlags::RDWR | OFlags::CREATE))?;
        let locked =
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive));
        at(&path, locked.map_err(Into::into))?;
        Ok(LockedDirectory { own, _lock: file })
    }
}

/// The existing entry of a name before it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    Foreign,
    /// A directory that the tree contains too.
    Directory,
}

/// An entry that differs from the tree.
struct Step {
    name: Vec<u8>,
    node: NodeId,
    id: ChunkId,
    attributes: Attributes,
    found: Found,
}

impl Step {
    fn is_directory(&self) -> bool {
        self.attributes.kind == Kind::Directory
    }

    /// Directories that existed before are not recorded, because they must not be removed.
    fn is_remembered(&self) -> bool {
        !(self.is_directory() && self.found == Found::Directory)
    }

    fn intended(&self, tree: &Tree) -> Written {
        let Attributes { modified_s, modified_ns, .. } = self.attributes;
        let size = match self.attributes.kind {
            Kind::Symlink => tree.target(self.node).len() as u64,
            _ => self.attributes.size,
        };
        let modified = (modified_s, modified_ns.into());
        let stamp = FileStamp { size, modified, ..FileStamp::default() };
        Written { is_directory: self.is_directory(), id: self.id, stamp }
    }
}

/// The changes that an update makes.
struct Plan {
    /// Directories precede their contents.
    steps: Vec<Step>,
    /// Contents precede their directories.
    gone: Vec<(Vec<u8>, Written)>,
}

impl Plan {
    fn new(root: &Directory, tree: &Tree, before: &Manifest) -> Self {
        let mut steps = Vec::new();
        let mut kept = BTreeSet::new();
        let mut todo = vec![(Vec::new(), Tree::ROOT, true)];
        while let Some((directory, node, is_there)) = todo.pop() {
            // If other users have replaced a directory by a link, files behind it are not ours.
            let here = is_there.then(|| root.beneath(&directory).ok()).flatten();
            for (name, node) in tree.children(node) {
                let found = here.as_ref().and_then(|here| here.stat(name));
                let name = joined(&directory, name);
                let attributes = tree.attributes(node);
                let kind = attributes.kind;
                let is_written = matches!(kind, Kind::Directory | Kind::File | Kind::Symlink);
                if !is_written || is_reserved(&name) {
                    continue;
                }
                let known = before.get(&name);
                let step = step(tree, node, name, known, found.as_ref());
                if known.is_some_and(|known| known.is_directory == step.is_directory()) {
                    kept.insert(step.name.clone());
                }
                if step.is_directory() {
                    let is_there = step.found == Found::Directory;
                    todo.push((step.name.clone(), node, is_there));
                    if !is_there || known.is_some_and(|known| known.id != step.id) {
                        steps.push(step);
                    }
                } else if !is_as_written(known, &step.id, found.as_ref()) {
                    steps.push(step);
                }
            }
        }
        let gone = before.iter().rev().filter(|(name, _)| !kept.contains(*name));
        Self { steps, gone: gone.map(|(name, written)| (name.clone(), *written)).collect() }
    }
}

fn step(
    tree: &Tree,
    node: NodeId,
    name: Vec<u8>,
    known: Option<&Written>,
    found: Option<&Stat>,
) -> Step {
    let attributes = tree.attributes(node);
    let found = match found {
        None => Found::Nothing,
        Some(found) if is_directory(found) && attributes.kind == Kind::Directory => {
            Found::Directory
        }
        Some(found) => {
            let is_ours = known.is_some_and(|known| {
                known.is_directory == is_directory(found)
                    && (known.is_directory || known.stamp.admits(&FileStamp::of(found)))
            });
            if is_ours { Found::Ours } else { Found::Foreign }
        }
    };
    Step { id: identity(tree, node), name, node, attributes, found }
}

fn is_as_written(known: Option<&Written>, id: &ChunkId, found: Option<&Stat>) -> bool {
    known.zip(found).is_some_and(|(known, found)| {
        known.id == *id && !known.is_directory && known.stamp == FileStamp::of(found)
    })
}

/// Returns a hash of all properties that determine how an entry is written.
fn identity(tree: &Tree, node: NodeId) -> ChunkId {
    let given = tree.attributes(node);
    let mut bytes = mode(&given).to_le_bytes().to_vec();
    match given.kind {
        Kind::Directory => bytes.push(b'd'),
        Kind::Symlink => {
            bytes.push(b'l');
            bytes.extend(tree.target(node));
        }
        _ => bytes.push(b'f'),
    }
    if given.kind != Kind::Directory {
        bytes.extend(given.modified_s.to_le_bytes());
        bytes.extend(given.modified_ns.to_le_bytes());
    }
    for extent in tree.extents(node) {
        bytes.extend(extent.end.to_le_bytes());
        bytes.extend(extent.chunk.map_or([0; 32], |chunk| chunk.0));
    }
    ChunkId::of(&bytes)
}

fn mode(given: &Attributes) -> u32 {
    let permissions = u32::from(given.unprivileged_permissions()) & 0o777;
    let is_directory = given.kind == Kind::Directory;
    permissions | if is_directory { DIRECTORY_MODE_MIN } else { FILE_MODE_MIN }
}

struct Update<'a> {
    /// Path of the root for errors.
    path: &'a Path,
    root: &'a Directory,
    tree: &'a Tree,
    store: &'a Store,
    names: Manifest,
    synced: Synced,
}

impl Update<'_> {
    /// Returns the full path, for messages.
    fn full(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsStr::from_bytes(name))
    }

    fn at<T>(&self, name: &[u8], done: io::Result<T>) -> Outcome<T> {
        done.map_err(|error| UnpackError::System(self.full(name), error))
    }

    fn remove(&mut self, gone: &[(Vec<u8>, Written)]) -> Outcome<()> {
        let (directories, files): (Vec<_>, Vec<_>) =
            gone.iter().partition(|(_, written)| written.is_directory);
        let mut compiled_modules = CompiledModules::default();
        for (name, written) in files {
            self.remove_file(name, written)?;
            compiled_modules.add(name);
        }
        compiled_modules.forget(self.root);
        for (name, _) in directories {
            if let Ok((directory, last)) = self.root.parent_of(name) {
                // A directory with files of other programs is kept and is not ours any more.
                let _ = directory.remove_directory(last);
            }
            self.names.remove(name);
        }
        Ok(())
    }

    fn remove_file(&mut self, name: &[u8], written: &Written) -> Outcome<()> {
        // If another user has replaced a parent directory by a link, the file is not ours.
        let place = self.root.parent_of(name).ok();
        let found =
            place.and_then(|(above, last)| above.stat(last).map(|found| (above, last, found)));
        if let Some((directory, last, found)) = found
            && !is_directory(&found)
        {
            let is_ours = written.stamp.admits(&FileStamp::of(&found));
            // If it is not even certain that this file was written by Mesh, it may belong to
            // someone else.
            if is_ours || written.stamp.inode != 0 {
                self.at(name, directory.remove_file(last))?;
                self.synced.removed += 1;
                self.synced.overwritten += u64::from(!is_ours);
            }
        }
        self.names.remove(name);
        Ok(())
    }

    fn write(&mut self, steps: &[Step]) -> Outcome<()> {
        let mut compiled_modules = CompiledModules::default();
        let mut done = Ok(());
        for step in steps {
            done = if step.is_directory() {
                self.make_directory(step)
            } else {
                compiled_modules.add(&step.name);
                self.replace(step)
            };
            if done.is_err() {
                break;
            }
        }
        compiled_modules.forget(self.root);
        done
    }

    fn make_directory(&mut self, step: &Step) -> Outcome<()> {
        let (directory, name) = self.at(&step.name, self.root.parent_of(&step.name))?;
        if step.found != Found::Directory {
            if directory.stat(name).is_some() {
                self.at(&step.name, directory.remove_file(name))?;
                self.synced.overwritten += u64::from(step.found == Found::Foreign);
            }
            self.at(&step.name, directory.create_directory(name))?;
        }
        let made = directory.child(name);
        let set = made.and_then(|made| made.set_permissions(mode(&step.attributes)));
        self.at(&step.name, set)?;
        self.names.insert(step.name.clone(), step.intended(self.tree));
        Ok(())
    }

    fn replace(&mut self, step: &Step) -> Outcome<()> {
        let (directory, name) = self.at(&step.name, self.root.parent_of(&step.name))?;
        let is_directory = directory.stat(name).is_some_and(|found| is_directory(&found));
        if is_directory && directory.remove_directory(name).is_err() {
            return Err(UnpackError::InTheWay(self.full(&step.name)));
        }
        let _ = directory.remove_file(UNFINISHED);
        let made = self.make(step, &directory);
        let placed = made.and_then(|()| self.at(&step.name, directory.rename(UNFINISHED, name)));
        if placed.is_err() {
            let _ = directory.remove_file(UNFINISHED);
        }
        placed?;
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let found = self.at(&step.name, directory.stat(name).ok_or_else(gone))?;
        let stamp = FileStamp::of(&found);
        self.names.insert(step.name.clone(), Written { is_directory: false, id: step.id, stamp });
        self.synced.written += 1;
        self.synced.overwritten += u64::from(step.found == Found::Foreign);
        self.synced.bytes += if step.attributes.kind == Kind::File { stamp.size } else { 0 };
        Ok(())
    }

    fn make(&self, step: &Step, directory: &Directory) -> Outcome<()> {
        let entry = if step.attributes.kind == Kind::Symlink {
            let made = directory.create_symlink(UNFINISHED, self.tree.target(step.node));
            let made = made.and_then(|()| directory.created(UNFINISHED, FileType::Symlink));
            self.at(&step.name, made)?
        } else {
            let mut file = self.at(&step.name, directory.create_file(UNFINISHED))?;
            let path = self.full(&step.name);
            write_content(self.tree, step.node, self.store, &mut file, &path)?;
            let file = Created::from(file);
            self.at(&step.name, file.set_permissions(mode(&step.attributes)))?;
            file
        };
        self.at(&step.name, entry.set_times(&step.attributes))
    }
}

/// Returns whether a name is reserved for the workspace; such names of the tree are omitted.
fn is_reserved(name: &[u8]) -> bool {
    name == OWN || name.rsplit(|byte| *byte == b'/').next() == Some(UNFINISHED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mesh_chunks::StoreOptions;
    use std::fs;

    /// The description of an empty tree.
    const EMPTY: &[u8] = b"meshtree\x01\x01\xed\x03\0\0\0\0\0";

    #[test]
    fn a_hostile_manifest_cannot_remove_files_outside_the_workspace() {
        let place = tempfile::tempdir().expect("a folder can be made");
        let outside = place.path().join("outside");
        fs::write(&outside, "theirs").expect("a file can be written");
        let workspace = Workspace::open(&place.path().join("root")).expect("it can be made");
        let stamp = FileStamp { inode: 1, ..FileStamp::default() };
        let written = Written { is_directory: false, id: ChunkId::of(b"some"), stamp };
        for name in [b"../outside".to_vec(), outside.as_os_str().as_bytes().to_vec()] {
            let own = workspace.own().expect("it is there");
            let hostile = Manifest::from([(name, written)]);
            manifest::write(&own, &hostile).expect("it can be written");
            let tree = Tree::decode(EMPTY).expect("it is a tree");
            let chunks = place.path().join("chunks");
            let store = Store::open(&chunks, StoreOptions::default()).expect("it can be made");
            workspace.update(&tree, &store).expect("there is nothing to do");
        }
        assert_eq!(fs::read(&outside).expect("it is there"), b"theirs");
    }

    #[test]
    fn the_manifest_directory_must_not_be_a_symlink() {
        let place = tempfile::tempdir().expect("a folder can be made");
        let (root, outside) = (place.path().join("root"), place.path().join("outside"));
        fs::create_dir(&root).expect("a folder can be made");
        fs::create_dir(&outside).expect("a folder can be made");
        std::os::unix::fs::symlink(&outside, root.join(".mesh-workspace")).expect("it is new");
        assert!(Workspace::open(&root).is_err());
        assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 0);
    }
}
