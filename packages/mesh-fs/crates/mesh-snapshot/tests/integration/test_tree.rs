//! Directories for tests, and functions to inspect snapshots of them.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use mesh_snapshot::{ChunkId, Joined, Kind, NodeId, Options, Recipe, Snapshot, Tree};
use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A temporary directory.
pub(crate) struct TestTree {
    directory: tempfile::TempDir,
}

impl TestTree {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn directory(&self, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
    }

    /// Writes a file, and creates its parent directories.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn random(&self, name: &str, len: usize, seed: u64) -> Vec<u8> {
        let bytes = random(len, seed);
        self.write(name, &bytes);
        bytes
    }

    /// Waits until a new change gets a later timestamp than all previous changes.
    pub(crate) fn tick(&self) {
        let probe = tempfile::NamedTempFile::new_in(self.root().parent().unwrap()).unwrap();
        let time = || {
            fs::write(probe.path(), "x").unwrap();
            let metadata = probe.path().metadata().unwrap();
            (metadata.ctime(), metadata.ctime_nsec())
        };
        let begun = time();
        // Wait for a second clock too: timestamps of files may have a finer resolution.
        let next = std::iter::repeat_with(time).find(|now| *now > begun).unwrap();
        let coarse = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
            (now.tv_sec, now.tv_nsec)
        };
        while coarse() <= next {
            std::thread::yield_now();
        }
    }
}

/// Incompressible bytes that depend only on the seed.
pub(crate) fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(len).collect()
}

pub(crate) fn take(test_tree: &TestTree) -> Snapshot {
    Snapshot::take(test_tree.root(), &Options::default(), None).unwrap()
}

/// Decodes the tree as another process does: from its recipe only.
pub(crate) fn tree(snapshot: &Snapshot) -> Tree {
    let mut get = |chunk: &ChunkId| {
        let mut bytes = Vec::new();
        snapshot.read(chunk, &mut bytes).ok().map(|()| bytes)
    };
    let mut recipe = Recipe::parse(snapshot.recipe()).unwrap();
    loop {
        match recipe.join(&mut get).unwrap() {
            Joined::Recipe(next) => recipe = next,
            Joined::Stream(stream) => {
                assert_eq!(stream, snapshot.stream());
                return Tree::decode(&stream).unwrap();
            }
        }
    }
}

pub(crate) fn find(tree: &Tree, path: &str) -> NodeId {
    let names = path.split('/');
    names.fold(Tree::ROOT, |node, name| tree.lookup(node, name.as_bytes()).expect(path))
}

/// Returns the content of a file, read from its chunks.
pub(crate) fn content(snapshot: &Snapshot, tree: &Tree, file: NodeId) -> Vec<u8> {
    let mut content = Vec::new();
    let mut bytes = Vec::new();
    for extent in tree.extents(file) {
        match &extent.chunk {
            Some(chunk) => {
                snapshot.read(chunk, &mut bytes).unwrap();
                content.extend_from_slice(&bytes);
            }
            None => content.resize(extent.end as usize, 0),
        }
        assert_eq!(content.len() as u64, extent.end);
    }
    content
}

/// Takes a snapshot and compares everything with the file system.
pub(crate) fn check(test_tree: &TestTree) {
    let snapshot = take(test_tree);
    let tree = tree(&snapshot);
    compare_with(test_tree.root(), &snapshot, &tree, Tree::ROOT);
}

fn compare_with(path: &Path, snapshot: &Snapshot, tree: &Tree, node: NodeId) {
    let system = fs::symlink_metadata(path).unwrap();
    let attributes = tree.attributes(node);
    assert_eq!(u32::from(attributes.permissions), system.mode() & 0o7777, "{path:?}");
    assert_eq!(attributes.modified_s, system.mtime());
    assert_eq!(i64::from(attributes.modified_ns), system.mtime_nsec());
    match attributes.kind {
        Kind::Directory => {
            assert!(system.is_dir());
            let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.collect();
            names.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
            let listed: Vec<_> = tree.children(node).collect();
            assert_eq!(listed.len(), names.len());
            for ((name, inside), system) in listed.iter().zip(names) {
                assert_eq!(*name, system.as_bytes());
                compare_with(&path.join(system), snapshot, tree, *inside);
            }
        }
        Kind::File => {
            assert_eq!(attributes.size, system.len());
            assert!(content(snapshot, tree, node) == fs::read(path).unwrap(), "{path:?}");
        }
        _ => assert!(!system.is_dir() && !system.is_file()),
    }
}

/// Returns the bytes in chunks that `before` does not contain: of files, and of the description.
pub(crate) fn moved(before: &Snapshot, after: &Snapshot) -> (u64, u64) {
    let all = |snapshot: &Snapshot| -> (HashSet<_>, HashSet<_>) {
        let recipe = Recipe::parse(snapshot.recipe()).unwrap();
        assert_eq!(recipe.level(), 0);
        let tree = tree(snapshot);
        (tree.chunks().collect(), recipe.chunks().iter().copied().collect())
    };
    let (old, new) = (all(before), all(after));
    let sum = |new: &HashSet<(ChunkId, u32)>, old: &HashSet<(ChunkId, u32)>| -> u64 {
        new.difference(old).map(|(_, len)| u64::from(*len)).sum()
    };
    (sum(&new.0, &old.0), sum(&new.1, &old.1))
}
