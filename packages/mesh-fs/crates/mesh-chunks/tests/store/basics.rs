//! Chunks that were put can be read, and invalid requests return errors.

use crate::material::{SMALL, chunk, chunks, count_right, files, folder, ids, open, put};
use mesh_chunks::{CHUNK_BYTES_MAX, ChunkId, Store, StoreError, StoreOptions};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn chunks_of_all_lengths_round_trip() {
    let folder = folder();
    let lengths = [1, 2, 100, 4095, 4096, 70_000, CHUNK_BYTES_MAX];
    let all: Vec<_> = (0..).zip(lengths).map(|(number, length)| chunk(number, length)).collect();
    let store = open(folder.path(), StoreOptions::default());
    put(&store, &all);
    for store in [&store, &open(folder.path(), StoreOptions::default())] {
        assert_eq!(count_right(store, &all), all.len());
        for chunk in &all {
            assert!(store.has(&chunk.id));
            assert_eq!(store.length(&chunk.id), Some(chunk.bytes.len() as u32));
            let mut whole = vec![0; chunk.bytes.len()];
            assert!(store.read(&chunk.id, 0, &mut whole).expect("it is read"));
            assert_eq!(whole, chunk.bytes);
        }
    }
}

#[test]
fn a_part_of_a_chunk_can_be_read() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    // The longer one first, so that leftovers of it in the buffer would be detected.
    for chunk in [chunk(1, 50_000), chunk(2, 1000)] {
        store.put(chunk.id, &chunk.bytes).expect("it is put");
        for (start, end) in [(0, 0), (0, 1), (1, 1000), (500, 600), (999, 1000), (1000, 1000)] {
            let mut part = vec![7; end - start];
            assert!(store.read(&chunk.id, start, &mut part).expect("it is read"));
            assert_eq!(part, chunk.bytes[start..end]);
        }
    }
}

#[test]
fn reads_beyond_the_end_of_a_chunk_are_refused() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let chunk = chunk(1, 1000);
    store.put(chunk.id, &chunk.bytes).expect("it is put");
    for (start, count) in [(0, 1001), (1000, 1), (1001, 0), (usize::MAX, 2)] {
        let error = store.read(&chunk.id, start, &mut vec![0; count]).expect_err("too far");
        assert!(matches!(error, StoreError::Range { length: 1000, .. }), "{error}");
    }
}

#[test]
fn an_absent_chunk_is_missing() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let id = ChunkId::of(b"nobody has put this");
    assert!(!store.has(&id));
    assert_eq!(store.length(&id), None);
    assert_eq!(store.get(&id).expect("no error"), None);
    assert!(!store.read(&id, 0, &mut [0; 10]).expect("no error"));
}

#[test]
fn mismatched_bytes_are_refused_even_if_the_chunk_exists() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let id = ChunkId::of(b"right");
    for _ in 0..2 {
        let error = store.put(id, b"wrong").expect_err("a mismatch");
        let StoreError::Mismatch { id: requested, found } = error else { panic!("{error}") };
        assert_eq!((requested, found), (id, ChunkId::of(b"wrong")));
        store.put(id, b"right").expect("it is put");
    }
    assert_eq!(store.get(&id).expect("no error").as_deref(), Some(&b"right"[..]));
}

#[test]
fn empty_and_oversized_chunks_are_refused() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    for length in [0, CHUNK_BYTES_MAX + 1] {
        let wrong = chunk(1, length);
        let good = chunk(2, 10);
        let error = store.put(wrong.id, &wrong.bytes).expect_err("a wrong length");
        assert!(matches!(error, StoreError::Length { length: told } if told == length));
        let both = [(good.id, &good.bytes[..]), (wrong.id, &wrong.bytes[..])];
        store.put_verified(&both).expect_err("a wrong length");
        assert!(!store.has(&good.id));
    }
}

#[test]
fn a_large_batch_spans_several_packs() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let mut all = chunks(0..40);
    // More than one system call takes, and some duplicates.
    all.extend((100..2200).map(|number| chunk(number, 10)));
    all.extend(chunks(0..3));
    let pairs: Vec<_> = all.iter().map(|chunk| (chunk.id, &chunk.bytes[..])).collect();
    store.put_verified(&pairs).expect("they are put");
    assert_eq!(count_right(&store, &all), all.len());
    assert_eq!(count_right(&open(folder.path(), SMALL), &all), all.len());
    assert_eq!(store.usage().chunks, 2140);
    assert!(files(folder.path(), "pack").len() > 2);
}

#[test]
fn a_stored_chunk_is_not_written_again() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let all = chunks(0..10);
    put(&store, &all);
    let before = store.usage();
    put(&store, &all);
    assert_eq!(store.usage().bytes, before.bytes);
    assert_eq!(before.bytes, 10 * (4096 + 48));
}

#[test]
fn an_empty_batch_does_nothing() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    store.put_verified(&[]).expect("nothing to do");
    assert!(store.missing(&[]).is_empty());
    assert!(files(folder.path(), "pack").is_empty());
}

#[test]
fn missing_chunks_are_reported_by_index() {
    let folder = folder();
    let store = open(folder.path(), SMALL);
    let all = chunks(0..6);
    put(&store, &all[2..4]);
    assert_eq!(store.missing(&ids(&all)), [0, 1, 4, 5]);
}

#[test]
fn chunks_can_be_read_without_keep_cached() {
    let folder = folder();
    let store = open(folder.path(), StoreOptions { keep_cached: false, ..SMALL });
    let all = chunks(0..40);
    put(&store, &all);
    for _ in 0..2 {
        assert_eq!(count_right(&store, &all), all.len());
    }
}

/// Returns whether a byte is absent from the page cache, or `None` if this is unknown.
fn is_dropped(pack: &Path, at: u64) -> Option<bool> {
    const TMPFS: u64 = 0x0102_1994;
    let file = std::fs::File::open(pack).expect("it is there");
    let mut byte = [0];
    let mut into = [std::io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(&file, &mut into, at, rustix::io::ReadWriteFlags::NOWAIT) {
        Err(rustix::io::Errno::AGAIN) => Some(true),
        Ok(_) => (rustix::fs::fstatfs(&file).ok()?.f_type as u64 != TMPFS).then_some(false),
        Err(_) => None,
    }
}

#[test]
fn a_read_drops_chunks_from_the_page_cache_unless_it_keeps_them_cached() {
    let folder = folder();
    let options = StoreOptions { keep_cached: false, ..StoreOptions::default() };
    let store = open(folder.path(), options);
    let all: Vec<_> = (0..64).map(|number| chunk(number, 100_000)).collect();
    put(&store, &all);
    let [pack] = &files(folder.path(), "pack")[..] else { panic!("it is one pack") };
    let [first, middle] = [0, 3_000_000];
    if is_dropped(pack, first).is_none() {
        return;
    }
    for chunk in &all {
        let mut into = vec![0; chunk.bytes.len()];
        assert!(
            store.read_keeping_cached(&chunk.id, &mut into).expect("it can be read")
                && into == chunk.bytes
        );
    }
    assert_eq!(is_dropped(pack, middle), Some(false));
    assert_eq!(count_right(&store, &all), all.len());
    let until = Instant::now() + Duration::from_secs(60);
    for at in [first, middle] {
        while is_dropped(pack, at) != Some(true) {
            assert!(Instant::now() < until, "the byte {at} stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!(count_right(&store, &all), all.len());
}

#[test]
fn the_number_of_open_files_is_bounded() {
    let folder = folder();
    let store = open(folder.path(), StoreOptions { pack_bytes: 1, ..SMALL });
    let all: Vec<_> = (0..300).map(|number| chunk(number, 10)).collect();
    put(&store, &all);
    assert_eq!(files(folder.path(), "pack").len(), 300);
    for _ in 0..2 {
        assert_eq!(count_right(&store, &all), 300);
    }
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("our files")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|path| path.starts_with(folder.path()));
    assert!(open.count() <= 128 + 4);
}

#[test]
fn a_store_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Store>();
}
