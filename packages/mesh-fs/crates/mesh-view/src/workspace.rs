//! A tree written next to files of others, again and again.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use mesh_chunks::{ChunkId, Store};
use mesh_snapshot::{Attributes, Kind, NodeId, Tree};
use rustix::fs::FlockOperation;

use crate::content::{set_times, write_content};
use crate::manifest::{self, Look, Manifest, Written};
use crate::unpack::{Outcome, UnpackError, at};

/// A directory in the root, in which it is kept what was written.
const OWN: &str = ".mesh-workspace";
/// Beside a file while it is written. One is written at a time, so that one name is enough.
const UNFINISHED: &str = ".mesh-unfinished";
/// What its user may always do with a file, and with a directory.
const FILE_MODE_MIN: u32 = 0o600;
const DIRECTORY_MODE_MIN: u32 = 0o700;

/// How much an update has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Synced {
    /// Files and links that were made or replaced.
    pub written: u64,
    /// Files and links that were removed.
    pub removed: u64,
    /// Those among both that somebody else had made or changed meanwhile.
    pub overwritten: u64,
    /// Bytes of the files that were written.
    pub bytes: u64,
}

/// A directory that takes on a tree, and in which others may have files as well.
///
/// It remembers, in the directory itself, what it has written; so another process can go on where
/// this one ended, or was killed.
pub struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Takes a directory, or makes it.
    ///
    /// # Errors
    ///
    /// It cannot be made, or not be written.
    pub fn open(root: &Path) -> Outcome<Self> {
        let own = root.join(OWN);
        at(&own, fs::create_dir_all(&own))?;
        Ok(Self { root: root.to_owned() })
    }

    /// Gives the chunks that an update would write now, each once.
    ///
    /// # Errors
    ///
    /// The system refused.
    pub fn needed(&self, tree: &Tree) -> Outcome<Vec<ChunkId>> {
        let _lock = self.lock()?;
        let before = manifest::read(&self.names());
        let steps = Plan::new(&self.root, tree, &before).steps;
        let mut seen = HashSet::new();
        let extents = steps.iter().flat_map(|step| tree.extents(step.node));
        Ok(extents.filter_map(|extent| extent.chunk).filter(|chunk| seen.insert(*chunk)).collect())
    }

    /// Writes what is not as in the tree, and removes what was written before and is not in it.
    ///
    /// Files of others stay, unless the tree has something of the same name. A file is replaced by
    /// another one: who has it open reads on in the old.
    ///
    /// # Errors
    ///
    /// A chunk is missing, a directory of others is where a file has to go, or the system refused.
    /// What was written stays, and another call goes on.
    pub fn update(&self, tree: &Tree, store: &Store) -> Outcome<Synced> {
        let _lock = self.lock()?;
        let mut names = manifest::read(&self.names());
        let plan = Plan::new(&self.root, tree, &names);
        if plan.steps.is_empty() && plan.gone.is_empty() {
            return Ok(Synced::default());
        }
        // Who goes on after us when we are killed has to know what may be ours.
        for step in plan.steps.iter().filter(|step| step.is_remembered()) {
            names.insert(step.name.clone(), step.intended(tree));
        }
        self.remember(&names)?;
        let mut update = Update { root: &self.root, tree, store, names, synced: Synced::default() };
        let done = update.remove(&plan.gone).and_then(|()| update.write(&plan.steps));
        let remembered = self.remember(&update.names);
        done.and(remembered).map(|()| update.synced)
    }

    fn names(&self) -> PathBuf {
        self.root.join(OWN).join("names")
    }

    fn remember(&self, names: &Manifest) -> Outcome<()> {
        let path = self.names();
        at(&path, manifest::write(&path, names))
    }

    /// Waits until nobody else writes here; until the file is dropped nobody will.
    fn lock(&self) -> Outcome<File> {
        let path = self.root.join(OWN).join("lock");
        at(&path, fs::create_dir_all(self.root.join(OWN)))?;
        let file = at(&path, File::create(&path))?;
        let locked =
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive));
        at(&path, locked.map_err(Into::into))?;
        Ok(file)
    }
}

/// What is at the place of an entry, before it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    Ours,
    Foreign,
    /// A directory that an entry of the tree goes on with.
    Directory,
}

/// An entry that is not as in the tree.
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

    /// A directory that was there before is not ours to remove.
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
        let look = Look { size, modified, ..Look::default() };
        Written { is_directory: self.is_directory(), id: self.id, look }
    }
}

/// What an update has to do.
struct Plan {
    /// Directories before what is in them.
    steps: Vec<Step>,
    /// What is inside a directory before the directory.
    gone: Vec<(Vec<u8>, Written)>,
}

impl Plan {
    fn new(root: &Path, tree: &Tree, before: &Manifest) -> Self {
        let mut steps = Vec::new();
        let mut kept = BTreeSet::new();
        let mut todo = vec![(Vec::new(), Tree::ROOT, true)];
        while let Some((directory, node, is_there)) = todo.pop() {
            for (name, node) in tree.children(node) {
                let name = joined(&directory, name);
                let attributes = tree.attributes(node);
                let kind = attributes.kind;
                let is_written = matches!(kind, Kind::Directory | Kind::File | Kind::Symlink);
                if !is_written || is_reserved(&name) {
                    continue;
                }
                // What others see of it through a link instead of a directory is not ours.
                let path = root.join(OsStr::from_bytes(&name));
                let found = is_there.then(|| fs::symlink_metadata(path).ok()).flatten();
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
    found: Option<&Metadata>,
) -> Step {
    let attributes = tree.attributes(node);
    let found = match found {
        None => Found::Nothing,
        Some(found) if found.is_dir() && attributes.kind == Kind::Directory => Found::Directory,
        Some(found) => {
            let is_ours = known.is_some_and(|known| {
                known.is_directory == found.is_dir()
                    && (known.is_directory || known.look.admits(&Look::of(found)))
            });
            if is_ours { Found::Ours } else { Found::Foreign }
        }
    };
    Step { id: identity(tree, node), name, node, attributes, found }
}

fn is_as_written(known: Option<&Written>, id: &ChunkId, found: Option<&Metadata>) -> bool {
    known.zip(found).is_some_and(|(known, found)| {
        known.id == *id && !known.is_directory && known.look == Look::of(found)
    })
}

/// Gives the same only for what would be written in the same way.
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
    root: &'a Path,
    tree: &'a Tree,
    store: &'a Store,
    names: Manifest,
    synced: Synced,
}

impl Update<'_> {
    fn path(&self, name: &[u8]) -> PathBuf {
        self.root.join(OsStr::from_bytes(name))
    }

    fn remove(&mut self, gone: &[(Vec<u8>, Written)]) -> Outcome<()> {
        let (directories, files): (Vec<_>, Vec<_>) =
            gone.iter().partition(|(_, written)| written.is_directory);
        let mut modules = Modules::default();
        for (name, written) in files {
            self.remove_file(name, written)?;
            modules.add(&self.path(name));
        }
        modules.forget();
        for (name, _) in directories {
            if self.is_inside(name) {
                // One in which others have files stays, and is theirs from now on.
                let _ = fs::remove_dir(self.path(name));
            }
            self.names.remove(name);
        }
        Ok(())
    }

    fn remove_file(&mut self, name: &[u8], written: &Written) -> Outcome<()> {
        let path = self.path(name);
        let found = self.is_inside(name).then(|| fs::symlink_metadata(&path).ok()).flatten();
        if let Some(found) = found.filter(|found| !found.is_dir()) {
            let is_ours = written.look.admits(&Look::of(&found));
            // Where it is not even certain that we have written it, it may be of somebody else.
            if is_ours || written.look.inode != 0 {
                at(&path, fs::remove_file(&path))?;
                self.synced.removed += 1;
                self.synced.overwritten += u64::from(!is_ours);
            }
        }
        self.names.remove(name);
        Ok(())
    }

    /// Whether all directories above are directories, and no links that somebody has put there.
    fn is_inside(&self, name: &[u8]) -> bool {
        let path = self.path(name);
        let above = path.ancestors().skip(1).take_while(|above| *above != self.root);
        above.into_iter().all(|above| fs::symlink_metadata(above).is_ok_and(|found| found.is_dir()))
    }

    fn write(&mut self, steps: &[Step]) -> Outcome<()> {
        let mut modules = Modules::default();
        let mut done = Ok(());
        for step in steps {
            let path = self.path(&step.name);
            done = if step.is_directory() {
                self.make_directory(step, &path)
            } else {
                modules.add(&path);
                self.replace(step, &path)
            };
            if done.is_err() {
                break;
            }
        }
        modules.forget();
        done
    }

    fn make_directory(&mut self, step: &Step, path: &Path) -> Outcome<()> {
        if step.found != Found::Directory {
            if fs::symlink_metadata(path).is_ok() {
                at(path, fs::remove_file(path))?;
                self.synced.overwritten += u64::from(step.found == Found::Foreign);
            }
            at(path, fs::create_dir(path))?;
        }
        at(path, fs::set_permissions(path, Permissions::from_mode(mode(&step.attributes))))?;
        self.names.insert(step.name.clone(), step.intended(self.tree));
        Ok(())
    }

    fn replace(&mut self, step: &Step, path: &Path) -> Outcome<()> {
        let is_directory = fs::symlink_metadata(path).is_ok_and(|found| found.is_dir());
        if is_directory && fs::remove_dir(path).is_err() {
            return Err(UnpackError::InTheWay(path.to_owned()));
        }
        let unfinished = path.with_file_name(UNFINISHED);
        let _ = fs::remove_file(&unfinished);
        let made = self.make(step, &unfinished, path);
        let placed = made.and_then(|()| at(path, fs::rename(&unfinished, path)));
        if placed.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        placed?;
        let look = Look::of(&at(path, fs::symlink_metadata(path))?);
        self.names.insert(step.name.clone(), Written { is_directory: false, id: step.id, look });
        self.synced.written += 1;
        self.synced.overwritten += u64::from(step.found == Found::Foreign);
        self.synced.bytes += if step.attributes.kind == Kind::File { look.size } else { 0 };
        Ok(())
    }

    fn make(&self, step: &Step, path: &Path, name: &Path) -> Outcome<()> {
        if step.attributes.kind == Kind::Symlink {
            at(name, symlink(OsStr::from_bytes(self.tree.target(step.node)), path))?;
        } else {
            write_content(self.tree, step.node, self.store, path, name)?;
            let permissions = Permissions::from_mode(mode(&step.attributes));
            at(name, fs::set_permissions(path, permissions))?;
        }
        set_times(path, &step.attributes)
    }
}

/// Python modules whose compiled forms are not to be used any more.
///
/// Python itself tells them by whole seconds and by size, and so takes an old one for a new one.
#[derive(Default)]
struct Modules(BTreeMap<PathBuf, HashSet<OsString>>);

impl Modules {
    fn add(&mut self, path: &Path) {
        if path.extension() == Some(OsStr::new("py"))
            && let (Some(directory), Some(stem)) = (path.parent(), path.file_stem())
        {
            let stems = self.0.entry(directory.join("__pycache__")).or_default();
            stems.insert(stem.to_owned());
        }
    }

    fn forget(self) {
        for (directory, stems) in self.0 {
            let Ok(entries) = fs::read_dir(&directory) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let is_compiled = name.as_bytes().ends_with(b".pyc");
                // As in `module.cpython-312.opt-1.pyc`; the name of a module has no dots.
                let end = name.as_bytes().iter().position(|byte| *byte == b'.');
                let stem = OsStr::from_bytes(&name.as_bytes()[..end.unwrap_or(0)]);
                if is_compiled && stems.contains(stem) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            let _ = fs::remove_dir(&directory);
        }
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// Whether a name is for ourselves: then the tree's is left out.
fn is_reserved(name: &[u8]) -> bool {
    name == OWN.as_bytes()
        || name.rsplit(|byte| *byte == b'/').next() == Some(UNFINISHED.as_bytes())
}
