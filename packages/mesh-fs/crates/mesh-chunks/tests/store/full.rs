//! A full disk is reported as an error and does no damage.

use crate::material::{Chunk, SMALL, chunk, chunks, count_right, folder, open, put};
use mesh_chunks::{Store, StoreError};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of 1 MiB, mounted until it is dropped.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(at: &'a Path) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=700", "chunks"])
            .arg(at)
            .output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(at))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

/// Puts chunks until the disk is full; returns the chunks that were written.
fn fill(store: &Store, numbers: std::ops::Range<u64>) -> (Vec<Chunk>, StoreError) {
    let mut inside = Vec::new();
    for chunk in chunks(numbers) {
        if let Err(error) = store.put(chunk.id, &chunk.bytes) {
            assert!(!store.has(&chunk.id));
            return (inside, error);
        }
        inside.push(chunk);
    }
    panic!("the disk does not get full");
}

#[test]
fn a_full_disk_is_an_error_and_stored_chunks_stay_readable() {
    let folder = folder();
    let Some(_disk) = SmallDisk::mount(folder.path()) else {
        eprintln!("skipped: no disk can be mounted here, which takes the rights of root");
        return;
    };
    let store = open(folder.path(), SMALL);
    let (mut inside, error) = fill(&store, 0..1000);
    let StoreError::Full { folder: told, bytes, .. } = &error else { panic!("{error}") };
    assert_eq!((told.as_path(), *bytes), (folder.path(), 4096 + 48));
    assert!(inside.len() > 200);
    assert_eq!(count_right(&store, &inside), inside.len());
    // The system writes only a part of this batch.
    let batch = chunks(2000..2010);
    let pairs: Vec<_> = batch.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
    let error = store.put_verified(&pairs).expect_err("the disk is full");
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(count_right(&open(folder.path(), SMALL), &inside), inside.len());
    // Small chunks, whose records also need space, in batches that fail at arbitrary points.
    let watcher = open(folder.path(), SMALL);
    let small: Vec<_> = (3000..6000).map(|number| chunk(number, 20)).collect();
    let mut refused = 0;
    for batch in small.chunks(97) {
        let pairs: Vec<_> = batch.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
        refused += usize::from(store.put_verified(&pairs).is_err());
        let there = batch.len() - store.missing(&crate::material::ids(batch)).len();
        for store in [&store, &watcher] {
            assert_eq!(count_right(store, batch), there);
        }
    }
    assert!(refused > 0);
    // Damage is detected on a full disk too.
    let length = |pack: &PathBuf| std::fs::metadata(pack).expect("it is there").len();
    let packs = crate::material::files(folder.path(), "pack");
    let largest = packs.iter().max_by_key(|pack| length(pack)).expect("a pack");
    let lost = length(largest) / (4096 + 48);
    std::fs::remove_file(largest).expect("it was there");
    let left = count_right(&open(folder.path(), SMALL), &inside);
    assert!((1..=lost as usize + 1).contains(&(inside.len() - left)));
    // The disk has free space now.
    let last = chunk(5000, 4096);
    drop(store);
    let store = open(folder.path(), SMALL);
    put(&store, std::slice::from_ref(&last));
    inside.push(last);
    assert!(count_right(&store, &inside) > left);
}
