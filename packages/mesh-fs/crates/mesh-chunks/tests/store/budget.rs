//! The folder stays within its budget, and packs in use stay in it.

use crate::material::{
    Chunk, SMALL, bytes_in, chunk, chunks, count_right, files, folder, open, put,
};
use mesh_chunks::{Store, StoreOptions};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Eight packs of 16 KiB.
const TIGHT: StoreOptions =
    StoreOptions { budget_bytes: 128 << 10, pack_bytes: 64 << 10, keep_cached: true };

fn used_at(index: &Path, date: SystemTime) {
    let file = OpenOptions::new().write(true).open(index).expect("the index is there");
    file.set_modified(date).expect("it is dated");
}

fn hours_ago(hours: u64) -> SystemTime {
    SystemTime::now() - Duration::from_secs(3600 * hours)
}

/// Puts each chunk into a separate pack, and returns the index files in the same order.
fn put_apart(folder: &Path, store: &Store, chunks: &[Chunk]) -> Vec<PathBuf> {
    let mut seen = HashMap::new();
    for (at, chunk) in chunks.iter().enumerate() {
        store.put(chunk.id, &chunk.bytes).expect("it is put");
        for index in files(folder, "index") {
            seen.entry(index).or_insert(at);
        }
    }
    let mut indexes: Vec<_> = seen.into_iter().collect();
    indexes.sort_by_key(|(_, at)| *at);
    indexes.into_iter().map(|(index, _)| index).collect()
}

#[test]
fn the_store_stays_within_its_budget_and_keeps_the_newest_chunks() {
    let folder = folder();
    let store = open(folder.path(), TIGHT);
    let all = chunks(0..400);
    for part in all.chunks(7) {
        put(&store, part);
        assert!(bytes_in(folder.path()) <= TIGHT.budget_bytes);
        assert_eq!(count_right(&store, part), part.len());
    }
    let usage = store.usage();
    assert_eq!(usage.bytes, bytes_in(folder.path()));
    assert!(usage.bytes > TIGHT.budget_bytes / 2, "{usage:?}");
    assert!(usage.evicted > 80, "{usage:?}");
    assert_eq!(count_right(&store, &all) as u64, usage.chunks);
}

#[test]
fn batches_of_two_stores_stay_within_the_budget() {
    let folder = folder();
    let stores = [open(folder.path(), TIGHT), open(folder.path(), TIGHT)];
    let all = chunks(0..400);
    for (at, part) in all.chunks(10).enumerate() {
        let pairs: Vec<_> = part.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
        stores[at % 2].put_verified(&pairs).expect("they are put");
        // Neither store counts what the other one writes within one stride.
        assert!(bytes_in(folder.path()) <= TIGHT.budget_bytes + (4 << 10));
    }
    for store in &stores {
        assert!(count_right(store, &all) > 10);
        assert!(store.usage().evicted > 0);
    }
}

#[test]
fn a_smaller_budget_evicts_older_chunks() {
    let folder = folder();
    let all = chunks(0..100);
    put(&open(folder.path(), SMALL), &all);
    let store = open(folder.path(), TIGHT);
    assert!(store.usage().bytes > TIGHT.budget_bytes);
    let last = chunk(1000, 100);
    store.put(last.id, &last.bytes).expect("it is put");
    assert!(store.usage().bytes <= TIGHT.budget_bytes);
    assert!(store.has(&last.id));
}

#[test]
fn a_budget_smaller_than_a_pack_or_a_chunk_works() {
    for budget_bytes in [0, 1, 3000, 10_000, 50_000] {
        let folder = folder();
        let store = open(folder.path(), StoreOptions { budget_bytes, ..StoreOptions::default() });
        for chunk in &chunks(0..30) {
            store.put(chunk.id, &chunk.bytes).expect("it is put");
            // The pack that is being written is not evicted.
            assert!(bytes_in(folder.path()) <= budget_bytes.max(4096 + 48));
            assert!(store.has(&chunk.id));
        }
    }
}

#[test]
fn the_least_recently_used_pack_is_evicted_first() {
    let folder = folder();
    let options = StoreOptions { pack_bytes: 1, ..TIGHT };
    let store = open(folder.path(), options);
    let old = chunks(0..20);
    let indexes = put_apart(folder.path(), &store, &old);
    assert_eq!(indexes.len(), 20);
    // Packs 6 and 2 have been unused for longest; the others were used later, in order.
    for (at, index) in indexes.iter().enumerate() {
        let hours = match at {
            6 => 300,
            2 => 200,
            _ => 100 - at as u64,
        };
        used_at(index, hours_ago(hours));
    }
    let mut gone = Vec::new();
    for chunk in &chunks(100..125) {
        store.put(chunk.id, &chunk.bytes).expect("it is put");
        let left = |at: &usize| !indexes[*at].exists() && !gone.contains(at);
        let mut just_gone: Vec<_> = (0..20).filter(left).collect();
        just_gone.sort_by_key(|at| (*at != 6, *at != 2, *at));
        gone.extend(just_gone);
    }
    assert!(gone.len() > 10, "{gone:?}");
    let expected = [6, 2].into_iter().chain((0..20).filter(|at| ![6, 2].contains(at)));
    assert_eq!(gone, expected.take(gone.len()).collect::<Vec<_>>());
}

#[test]
fn a_read_or_a_repeated_put_protects_a_pack_from_eviction() {
    let folder = folder();
    let options = StoreOptions { pack_bytes: 1, ..TIGHT };
    // The next writer appends to the last pack, which counts as a use too.
    let old = chunks(0..21);
    let indexes = put_apart(folder.path(), &open(folder.path(), options), &old);
    indexes.iter().for_each(|index| used_at(index, hours_ago(1)));
    let store = open(folder.path(), options);
    assert_eq!(count_right(&store, &old[5..6]), 1);
    put(&store, &old[11..12]);
    let mut left: Vec<_> = (0..20).collect();
    let mut new = chunks(100..200).into_iter();
    while left.len() > 2 {
        put(&store, &[new.next().expect("the others go before so many are put")]);
        left.retain(|at| indexes[*at].exists());
    }
    assert_eq!(left, [5, 11]);
}

#[test]
fn the_use_of_a_pack_is_recorded_only_periodically() {
    let folder = folder();
    let all = chunks(0..2);
    put(&open(folder.path(), SMALL), &all);
    let index = &files(folder.path(), "index")[0];
    let store = open(folder.path(), SMALL);
    assert_eq!(count_right(&store, &all), 2);
    let date = hours_ago(5);
    used_at(index, date);
    // If the test is paused for seconds at this point, the use may be recorded again.
    assert_eq!(count_right(&store, &all), 2);
    let found = index.metadata().and_then(|metadata| metadata.modified()).expect("it is there");
    assert!(found == date || found > hours_ago(1));
}

#[test]
fn a_pack_with_an_active_writer_is_not_evicted() {
    let folder = folder();
    let writer = open(folder.path(), TIGHT);
    let first = chunks(0..1);
    put(&writer, &first);
    used_at(&files(folder.path(), "index")[0], hours_ago(1));
    let other = open(folder.path(), TIGHT);
    put(&other, &chunks(10..200));
    assert_eq!(count_right(&open(folder.path(), TIGHT), &first), 1);
    assert_eq!(count_right(&writer, &first), 1);
    drop(writer);
    put(&other, &chunks(200..400));
    assert_eq!(count_right(&other, &first), 0);
}

#[test]
fn a_store_with_a_removed_pack_open_reads_it_or_reports_it_missing() {
    let folder = folder();
    let first = chunks(0..4);
    put(&open(folder.path(), TIGHT), &first);
    let reader = open(folder.path(), TIGHT);
    let late = open(folder.path(), TIGHT);
    assert_eq!(count_right(&reader, &first), 4);
    put(&open(folder.path(), TIGHT), &chunks(10..200));
    let count = count_right(&reader, &first);
    assert!([0, 4].contains(&count));
    // A scan finds that the pack no longer exists, so the chunks are written again.
    assert!(!reader.has(&chunk(999, 10).id));
    assert_eq!(count_right(&reader, &first), 0);
    assert_eq!(count_right(&late, &first), 0);
    put(&reader, &first);
    assert_eq!(count_right(&late, &first), 4);
}

#[test]
fn a_put_does_not_wait_for_the_removal_lock() {
    let folder = folder();
    let store = open(folder.path(), TIGHT);
    put(&store, &chunks(0..10));
    let lock = OpenOptions::new().write(true).open(folder.path().join("removal.lock"));
    let lock = lock.expect("it was made with the first pack");
    lock.lock().expect("nobody has it");
    put(&store, &chunks(10..60));
    assert!(bytes_in(folder.path()) > TIGHT.budget_bytes);
    drop(lock);
    put(&store, &chunks(60..61));
    assert!(bytes_in(folder.path()) <= TIGHT.budget_bytes);
}

#[test]
fn leftover_files_are_evicted_first() {
    let folder = folder();
    let all = chunks(0..8);
    put(&open(folder.path(), TIGHT), &all);
    let packs = files(folder.path(), "pack").len();
    std::fs::write(folder.path().join("00000000000000aa.pack"), vec![0; 100_000]).expect("written");
    std::fs::write(folder.path().join("00000000000000bb.index"), [0; 480]).expect("written");
    let store = open(folder.path(), TIGHT);
    put(&store, &chunks(10..11));
    assert_eq!(count_right(&store, &all), 8);
    let names = [files(folder.path(), "pack"), files(folder.path(), "index")];
    assert!(names.iter().all(|files| files.len() <= packs + 1), "{names:?}");
}
