//! Random directories, and stores with their chunks.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mesh_chunks::{Store, StoreOptions};
use mesh_snapshot::{Snapshot, Tree};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use crate::test_tree::{TestTree, random, take, tree};

/// Sizes near block boundaries and near the limit for inline data.
const SIZES: [usize; 14] =
    [0, 1, 63, 4000, 4031, 4032, 4033, 4095, 4096, 4097, 8128, 8192, 40_000, 300_000];

/// Generates a directory step by step; the same seed generates the same entries.
pub(crate) struct Gardener<'a> {
    test_tree: &'a TestTree,
    state: u64,
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
    made: u64,
}

impl<'a> Gardener<'a> {
    pub(crate) fn new(test_tree: &'a TestTree, seed: u64) -> Self {
        let folders = vec![test_tree.root().to_owned()];
        Self { test_tree, state: seed.wrapping_mul(2) | 1, folders, files: Vec::new(), made: 0 }
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 16) as usize % end
    }

    /// Creates one new entry.
    pub(crate) fn plant(&mut self) {
        let path = self.free();
        match self.below(12) {
            0 | 1 => {
                fs::create_dir(&path).unwrap();
                self.folders.push(path.clone());
            }
            2 => {
                let target = "t".repeat([1, 100, 4030, 4033, 4095][self.below(5)]);
                std::os::unix::fs::symlink(target, &path).unwrap();
            }
            3 if !self.files.is_empty() => {
                let nth = self.below(self.files.len());
                fs::hard_link(&self.files[nth], &path).unwrap();
            }
            4 => {
                let mode = Mode::from_raw_mode(0o640);
                rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
            }
            5 => self.plant_sparse(&path),
            _ => {
                let size = SIZES[self.below(SIZES.len())];
                fs::write(&path, random(size, self.state)).unwrap();
                self.files.push(path.clone());
            }
        }
        if self.below(3) == 0 && !path.is_symlink() && (path.is_file() || path.is_dir()) {
            let value = random([0, 1, 100, 3000][self.below(4)], self.state);
            // Some file systems limit their size.
            let _ = rustix::fs::setxattr(&path, "user.note", &value, XattrFlags::empty());
        }
        self.date(&path);
    }

    fn plant_sparse(&mut self, path: &Path) {
        let file = fs::File::create(path).unwrap();
        for _ in 0..self.below(4) {
            let at = self.below(1 << 20) as u64;
            file.write_all_at(&random(self.below(20_000), at), at).unwrap();
        }
        file.set_len(file.metadata().unwrap().len() + self.below(1 << 20) as u64).unwrap();
    }

    fn date(&mut self, path: &Path) {
        let time = Timespec {
            tv_sec: [-2, 0, 1_600_000_000, 4_000_000_000][self.below(4)],
            tv_nsec: self.below(1_000_000_000) as _,
        };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    fn free(&mut self) -> PathBuf {
        self.made += 1;
        let nth = self.below(self.folders.len());
        let mut name = self.made.to_string().into_bytes();
        // Names of arbitrary bytes and lengths; some of them sort before `.`.
        name.insert(0, [b'!', b'-', b'.', b'a', 0xff][self.below(5)]);
        if self.below(10) == 0 {
            name.resize(255, b'n');
        }
        self.folders[nth].join(std::ffi::OsString::from_vec(name))
    }

    /// Returns the current tree, with its chunks in a store.
    pub(crate) fn harvest(&self, store: &Store) -> Tree {
        stored(self.test_tree, store)
    }
}

/// Takes a snapshot of a directory, and puts its chunks into a store.
pub(crate) fn stored(test_tree: &TestTree, store: &Store) -> Tree {
    let snapshot: Snapshot = take(test_tree);
    let tree = tree(&snapshot);
    let mut bytes = Vec::new();
    for (chunk, _) in tree.chunks() {
        snapshot.read(&chunk, &mut bytes).unwrap();
        store.put(chunk, &bytes).unwrap();
    }
    tree
}

pub(crate) fn store(folder: &Path) -> Store {
    Store::open(&folder.join("chunks"), StoreOptions::default()).unwrap()
}
