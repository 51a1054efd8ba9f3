//! Several threads put and read at the same time.

use crate::material::{Chunk, SMALL, chunk, count_right, folder, ids, open};
use mesh_chunks::{Store, StoreOptions};
use std::thread;

fn mixed(numbers: std::ops::Range<u64>) -> Vec<Chunk> {
    numbers.map(|number| chunk(number, 50 + (number as usize * 373) % 20_000)).collect()
}

/// Each thread starts at a different chunk, puts all that are missing, and reads them.
fn work(store: &Store, chunks: &[Chunk], first: usize) {
    let (front, back) = chunks.split_at(first);
    for part in back.chunks(5).chain(front.chunks(5)) {
        let missing = store.missing(&ids(part));
        let pairs: Vec<_> = missing.iter().map(|at| (part[*at].id, &part[*at].bytes[..])).collect();
        store.put_verified(&pairs).expect("they are put");
        let Chunk { id, bytes } = &part[0];
        let mut into = vec![0; bytes.len() / 2];
        if store.read(id, 3, &mut into).expect("it is read, or missing") {
            assert_eq!(into, bytes[3..3 + into.len()]);
        }
        count_right(store, part);
    }
}

fn work_together(folder: &std::path::Path, options: StoreOptions, chunks: &[Chunk]) {
    let stores = [open(folder, options), open(folder, options)];
    thread::scope(|scope| {
        for at in 0..8 {
            let store = &stores[at % 2];
            scope.spawn(move || work(store, chunks, at * chunks.len() / 8));
        }
    });
}

#[test]
fn threads_of_two_stores_find_all_chunks() {
    let folder = folder();
    let chunks = mixed(0..400);
    work_together(folder.path(), SMALL, &chunks);
    let store = open(folder.path(), SMALL);
    assert_eq!(count_right(&store, &chunks), chunks.len());
    assert_eq!(store.usage().damaged, 0);
}

#[test]
fn threads_never_read_wrong_bytes_during_eviction() {
    let folder = folder();
    let options = StoreOptions { budget_bytes: 500_000, ..SMALL };
    work_together(folder.path(), options, &mixed(0..400));
    let store = open(folder.path(), options);
    // A put does not wait for a concurrent eviction, so the last puts may exceed the budget.
    let last = chunk(1000, 100);
    store.put(last.id, &last.bytes).expect("it is put");
    assert!(store.usage().bytes <= options.budget_bytes);
}
