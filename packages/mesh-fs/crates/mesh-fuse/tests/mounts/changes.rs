//! Changes of files, and notifications to the kernel.

use crate::memory::Content;
use crate::mounted_files::{MountedFiles, noise};
use mesh_fuse::{Errno, ROOT};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

#[test]
fn changed_bytes_are_visible_after_an_invalidation() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", b"old")) else {
        return;
    };
    assert_eq!(mounted.read("file"), b"old");
    mounted.memory.set(2, Content::File(b"new and longer".to_vec()));
    assert_eq!(mounted.read("file"), b"old");
    mounted.mount.invalidate_node(2, 0, 0).expect("it is mounted");
    assert_eq!(mounted.read("file"), b"new and longer");
}

#[test]
fn a_range_of_a_file_can_be_invalidated() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", &noise(16_384)))
    else {
        return;
    };
    assert!(mounted.read("file") == noise(16_384));
    mounted.memory.set(2, Content::File(vec![7; 16_384]));
    mounted.mount.invalidate_node(2, 4096, 4096).expect("it is mounted");
    let mut expected = noise(16_384);
    expected[4096..8192].fill(7);
    assert!(mounted.read("file") == expected);
}

#[test]
fn a_new_name_is_visible_after_an_invalidation() {
    let Some(mounted) = MountedFiles::new(|_| ()) else { return };
    // One name with a cached negative lookup, and one without.
    assert!(!mounted.path("looked up").exists());
    assert!(mounted.list("").is_empty());
    mounted.memory.add_file(ROOT, "looked up", b"1");
    mounted.memory.add_file(ROOT, "not looked up", b"2");
    assert!(!mounted.path("looked up").exists());
    assert!(mounted.list("").is_empty());
    mounted.mount.invalidate_entry(ROOT, b"looked up").expect("it is mounted");
    assert_eq!(mounted.list(""), ["looked up", "not looked up"]);
    assert_eq!(mounted.read("looked up"), b"1");
    mounted.memory.add_file(ROOT, "third", b"3");
    mounted.mount.invalidate_entry(ROOT, b"third").expect("it is mounted");
    assert_eq!(mounted.list(""), ["looked up", "not looked up", "third"]);
    assert_eq!(mounted.read("third"), b"3");
}

#[test]
fn a_removed_name_disappears_and_is_forgotten_after_an_invalidation() {
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add_file(ROOT, "file", b"old");
        memory.add_file(ROOT, "watched", b"old");
    }) else {
        return;
    };
    assert_eq!(mounted.list(""), ["file", "watched"]);
    let open = File::open(mounted.path("file")).expect("it is there");
    mounted.memory.remove(ROOT, "file");
    mounted.mount.invalidate_entry(ROOT, b"file").expect("it is mounted");
    assert!(!mounted.path("file").exists());
    assert_eq!(mounted.list(""), ["watched"]);
    assert!(mounted.memory.lookups(2) > 0);
    let mut bytes = [0; 3];
    open.read_exact_at(&mut bytes, 0).expect("who has it open keeps it");
    assert_eq!(&bytes, b"old");
    drop(open);
    mounted.memory.wait_forgotten(2);
}

#[test]
fn an_open_file_has_no_links_after_its_deletion() {
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add_file(ROOT, "file", b"old");
        let folder = memory.add_directory(ROOT, "folder");
        memory.add_file(folder, "below", b"");
    }) else {
        return;
    };
    let file = File::open(mounted.path("file")).expect("it is there");
    assert!(mounted.path("folder/below").exists());
    mounted.memory.remove(ROOT, "file");
    assert_eq!(file.metadata().expect("it is open").nlink(), 1);
    mounted.mount.delete_entry(ROOT, 2, b"file").expect("it is mounted");
    assert_eq!(file.metadata().expect("it is open").nlink(), 0);
    assert!(!mounted.path("file").exists());
    assert_eq!(mounted.list(""), ["folder"]);
    mounted.mount.delete_entry(ROOT, 2, b"folder").expect("that was another file");
    assert!(mounted.path("folder/below").exists());
}

#[test]
fn nodes_and_names_unknown_to_the_kernel_can_be_invalidated() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_directory(ROOT, "folder")) else {
        return;
    };
    let mount = &mounted.mount;
    assert_eq!(mount.invalidate_node(77, 0, 0), Ok(()));
    assert_eq!(mount.invalidate_node(77, u64::MAX, u64::MAX), Ok(()));
    assert_eq!(mount.invalidate_entry(77, b"name"), Ok(()));
    assert_eq!(mount.invalidate_entry(ROOT, b"name"), Ok(()));
    assert_eq!(mount.delete_entry(ROOT, 77, b"name"), Ok(()));
    assert_eq!(mount.delete_entry(77, 78, b"name"), Ok(()));
    assert_eq!(mount.invalidate_entry(ROOT, b""), Err(Errno::INVAL));
    assert_eq!(mount.invalidate_entry(ROOT, b"a\0b"), Err(Errno::INVAL));
    assert_eq!(mount.invalidate_entry(ROOT, &[b'x'; 5000]), Err(Errno::INVAL));
    mount.close().expect("it is ours");
    assert_eq!(mount.invalidate_node(2, 0, 0), Err(Errno::NOTCONN));
}

#[test]
fn files_can_be_invalidated_while_they_are_read() {
    let Some(mounted) = MountedFiles::new(|memory| {
        for at in 0..4 {
            memory.add_file(ROOT, &format!("{at}"), &noise(200_000));
        }
    }) else {
        return;
    };
    let is_over = AtomicBool::new(false);
    let used = |result: io::Result<Vec<u8>>| assert!(result.expect("it can be read").len() > 1000);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    (0..4).for_each(|at| used(fs::read(mounted.path(&format!("{at}")))));
                    assert_eq!(mounted.list("").len(), 4);
                }
            });
        }
        for round in 0..200_u64 {
            let name = format!("{}", round % 4);
            mounted.mount.invalidate_node(2 + round % 4, 0, 0).expect("it is mounted");
            mounted.mount.invalidate_entry(ROOT, name.as_bytes()).expect("it is mounted");
        }
        is_over.store(true, Relaxed);
    });
}
