//! Several processes, some of which are killed, use stores on one folder.

use crate::material::{Chunk, SMALL, chunk, chunks, count_right, files, folder, ids, open, put};
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Environment variables of the process to be killed: its folder, and the number of its first
/// chunk.
const FOLDER: &str = "MESH_CHUNKS_TEST_FOLDER";
const FIRST: &str = "MESH_CHUNKS_TEST_FIRST";

#[test]
fn many_missing_chunks_cost_one_scan() {
    let folder = folder();
    let (store, other) = (open(folder.path(), SMALL), open(folder.path(), SMALL));
    let all = chunks(0..50);
    put(&store, &all[..40]);
    let before = other.usage().scans;
    assert_eq!(other.missing(&ids(&all)), (40..50).collect::<Vec<_>>());
    // `usage` itself scans the folder once.
    assert_eq!(other.usage().scans, before + 2);
}

#[test]
fn known_chunks_cost_no_scan() {
    let folder = folder();
    let (store, other) = (open(folder.path(), SMALL), open(folder.path(), SMALL));
    let all = chunks(0..50);
    put(&store, &all);
    let before = other.usage().scans;
    assert!(other.missing(&ids(&all)).is_empty());
    assert!(all.iter().all(|chunk| other.has(&chunk.id)));
    assert_eq!(other.usage().scans, before + 1);
}

#[test]
fn each_new_chunk_of_another_store_is_found() {
    let folder = folder();
    let (store, other) = (open(folder.path(), SMALL), open(folder.path(), SMALL));
    for chunk in &chunks(0..60) {
        assert!(!other.has(&chunk.id));
        store.put(chunk.id, &chunk.bytes).expect("it is put");
        assert!(other.has(&chunk.id));
    }
}

#[test]
fn a_new_store_appends_to_the_pack_of_a_closed_store() {
    let folder = folder();
    let all = chunks(0..12);
    for chunk in &all {
        put(&open(folder.path(), SMALL), std::slice::from_ref(chunk));
    }
    assert_eq!(files(folder.path(), "pack").len(), 1);
    assert_eq!(count_right(&open(folder.path(), SMALL), &all), 12);
}

#[test]
fn two_stores_never_write_to_one_pack() {
    let folder = folder();
    let (store, other) = (open(folder.path(), SMALL), open(folder.path(), SMALL));
    let all = chunks(0..4);
    put(&store, &all[..2]);
    put(&other, &all[2..]);
    assert_eq!(files(folder.path(), "pack").len(), 2);
    assert_eq!(count_right(&store, &all), 4);
}

fn numbered(number: u64) -> Chunk {
    chunk(number, 100 + (number as usize * 7919) % 30_000)
}

/// Starts a process that puts chunks until it is killed, and prints the number of each.
fn start_putting(folder: &Path, first: u64) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "processes::child_process_puts_chunks_until_it_is_killed", "--nocapture"])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test is started again")
}

#[test]
fn child_process_puts_chunks_until_it_is_killed() {
    let (Ok(folder), Ok(first)) = (env::var(FOLDER), env::var(FIRST)) else { return };
    let store = open(Path::new(&folder), SMALL);
    let first: u64 = first.parse().expect("a number");
    for at in 0..100_000 {
        let batch: Vec<_> = (0..=at % 3).map(|more| numbered(first + at * 3 + more)).collect();
        let pairs: Vec<_> = batch.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
        store.put_verified(&pairs).expect("they are put");
        for more in 0..=at % 3 {
            println!("put {}", first + at * 3 + more);
        }
    }
}

/// Waits until the process has put this many chunks, kills it, and returns all that it has put.
fn kill_after(mut child: Child, count: usize) -> Vec<Chunk> {
    let lines = BufReader::new(child.stdout.take().expect("its lines")).lines();
    let mut put = Vec::new();
    for line in lines {
        let line = line.expect("a line");
        // The last line may be incomplete and then contains another number.
        let number = line.strip_prefix("put ").and_then(|number| number.parse().ok());
        put.extend(number.map(numbered));
        if put.len() == count {
            child.kill().expect("it is killed");
        }
    }
    assert!(!child.wait().expect("it has ended").success());
    assert!(put.len() >= count);
    put
}

#[test]
fn chunks_put_by_killed_processes_survive() {
    let folder = folder();
    let watcher = open(folder.path(), SMALL);
    let mut all = Vec::new();
    for round in 0..4 {
        let first = round * 10_000_000;
        let children =
            [start_putting(folder.path(), first), start_putting(folder.path(), first + 5_000_000)];
        for (child, count) in children.into_iter().zip([20, 37]) {
            let mut put = kill_after(child, count + round as usize);
            // The last line may be incomplete.
            put.pop();
            all.extend(put);
        }
        assert_eq!(count_right(&watcher, &all), all.len());
        put(&watcher, &[chunk(1_000_000_000 + round, 5000)]);
    }
    let later = open(folder.path(), SMALL);
    assert_eq!(count_right(&later, &all), all.len());
    assert_eq!((watcher.usage().damaged, later.usage().damaged), (0, 0));
}
