//! Reading from mounts.
#![allow(unsafe_code)]

use crate::memory::Content;
use crate::mounted_files::{MountedFiles, noise};
use mesh_fuse::{Errno, Kind, ROOT};
use rustix::fs::{
    SeekFrom, XattrFlags, getxattr, getxattr_query, listxattr, listxattr_query, lsetxattr, seek,
    statvfs,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

#[test]
fn files_can_be_read() {
    let big = noise(5_000_001);
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add_file(ROOT, "empty", b"");
        memory.add_file(ROOT, "small", b"some bytes");
        memory.add_file(ROOT, "big", &big);
        let deep = memory.add_directory(ROOT, "deep");
        let deeper = memory.add_directory(deep, "deeper");
        memory.add_file(deeper, "one", b"1");
    }) else {
        return;
    };
    assert_eq!(mounted.read("empty"), b"");
    assert_eq!(mounted.read("small"), b"some bytes");
    assert!(mounted.read("big") == big);
    assert_eq!(mounted.read("deep/deeper/one"), b"1");
    let mut part = [0; 1000];
    let file = File::open(mounted.path("big")).expect("it is there");
    file.read_exact_at(&mut part, 4_999_001).expect("it is long enough");
    assert_eq!(part, big[4_999_001..]);
    assert_eq!(file.read_at(&mut part, 5_000_001).expect("beyond the end is nothing"), 0);
}

#[test]
fn files_can_be_mapped() {
    let big = noise(5_000_000);
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "big", &big)) else {
        return;
    };
    let file = File::open(mounted.path("big")).expect("it is there");
    let (none, read, shared) = (std::ptr::null_mut(), ProtFlags::READ, MapFlags::SHARED);
    // SAFETY: this creates a new mapping, to which no other reference exists.
    let map = unsafe { mmap(none, big.len(), read, shared, &file, 0) }.expect("it can be mapped");
    // SAFETY: the mapping has this length, and no one changes the file.
    let bytes = unsafe { std::slice::from_raw_parts(map.cast::<u8>(), big.len()) };
    assert!(bytes == big);
    // SAFETY: the bytes are not used any more.
    unsafe { munmap(map, big.len()) }.expect("it was mapped");
}

#[test]
fn stat_returns_the_kind_and_attributes_of_a_file() {
    let device = rustix::fs::makedev(0x123, 0x4_5678);
    let Some(mounted) = MountedFiles::new(|memory| {
        let file = memory.add_file(ROOT, "file", &noise(1025));
        memory.set_permissions(file, 0o4751);
        memory.add(ROOT, "link", Content::Link(b"there/is nothing".to_vec()));
        memory.add(ROOT, "fifo", Content::Special(Kind::Fifo, 0));
        memory.add(ROOT, "socket", Content::Special(Kind::Socket, 0));
        memory.add(ROOT, "block", Content::Special(Kind::BlockDevice, device));
        memory.add(ROOT, "char", Content::Special(Kind::CharDevice, device));
    }) else {
        return;
    };
    let stat = |name: &str| fs::symlink_metadata(mounted.path(name)).expect("it is there");
    let file = stat("file");
    assert!(file.is_file());
    assert_eq!((file.mode(), file.len(), file.blocks(), file.nlink()), (0o10_4751, 1025, 3, 1));
    assert_eq!((file.uid(), file.gid()), (1234, 5678));
    assert_eq!((file.mtime(), file.mtime_nsec()), (1_700_000_000, 123_456_789));
    let link = stat("link");
    assert!(link.is_symlink() && link.len() == 16);
    let target = fs::read_link(mounted.path("link")).expect("it is a link");
    assert_eq!(target, Path::new("there/is nothing"));
    assert!(stat("fifo").file_type().is_fifo());
    assert!(stat("socket").file_type().is_socket());
    assert!(stat("block").file_type().is_block_device());
    assert!(stat("char").file_type().is_char_device());
    assert_eq!((stat("block").rdev(), stat("char").rdev()), (device, device));
    assert!(stat("").is_dir());
    assert_eq!(stat("").ino(), ROOT);
}

#[test]
fn a_large_directory_is_listed_completely_and_then_cached() {
    let mut names: Vec<_> = (0..10_000).map(|at| format!("a file with the number {at}")).collect();
    let Some(mounted) = MountedFiles::new(|memory| {
        for name in &names {
            memory.add_file(ROOT, name, name.as_bytes());
        }
        memory.add_directory(ROOT, "zero");
    }) else {
        return;
    };
    names.push("zero".into());
    names.sort();
    assert!(mounted.list("") == names);
    for name in &names {
        let file = fs::metadata(mounted.path(name)).expect("it is listed");
        assert!(file.is_dir() || file.len() == name.len() as u64);
    }
    let requested = |call| mounted.memory.calls().get(call).copied();
    let before = (requested("lookup"), requested("attributes"));
    // The kernel may drop parts of the listing itself when it needs memory.
    assert!(mounted.list("") == names);
    for name in &names {
        fs::metadata(mounted.path(name)).expect("it is listed");
    }
    assert_eq!((requested("lookup"), requested("attributes")), before);
    assert_eq!(mounted.memory.lookups(2), 1);
}

#[test]
fn cached_entries_are_not_requested_again() {
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add_file(ROOT, "file", b"some bytes");
        memory.add(ROOT, "link", Content::Link(b"file".to_vec()));
    }) else {
        return;
    };
    let with_node = || {
        assert_eq!(mounted.read("link"), b"some bytes");
        let absent = fs::metadata(mounted.path("absent")).expect_err("it is not there");
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        fs::metadata(mounted.path("file")).expect("it is there");
    };
    with_node();
    let requested = mounted.memory.calls();
    assert_eq!(requested["lookup"], 3);
    with_node();
    assert_eq!(mounted.memory.calls(), requested);
}

#[test]
fn extended_attributes_are_shown() {
    let Some(mounted) = MountedFiles::new(|memory| {
        let file = memory.add_file(ROOT, "file", b"");
        memory.set_xattr(file, "user.colour", b"green");
        memory.set_xattr(file, "user.nothing", b"");
        memory.add_file(ROOT, "plain", b"");
    }) else {
        return;
    };
    let file = mounted.path("file");
    let mut buffer = [0; 100];
    let len = getxattr(&file, "user.colour", &mut buffer).expect("it has a colour");
    assert_eq!(&buffer[..len], b"green");
    assert_eq!(getxattr_query(&file, "user.colour"), Ok(5));
    assert_eq!(getxattr(&file, "user.colour", &mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(getxattr(&file, "user.nothing", &mut buffer), Ok(0));
    assert_eq!(getxattr(&file, "user.shape", &mut buffer), Err(Errno::NODATA));
    let len = listxattr(&file, &mut buffer).expect("it has names");
    assert_eq!(&buffer[..len], b"user.colour\0user.nothing\0");
    assert_eq!(listxattr_query(&file), Ok(25));
    assert_eq!(listxattr(mounted.path("plain"), &mut buffer), Ok(0));
}

#[test]
fn statfs_reports_the_space() {
    let Some(mounted) = MountedFiles::new(|_| ()) else { return };
    let events = statvfs(mounted.folder.path()).expect("it is mounted");
    assert_eq!(
        (events.f_bsize, events.f_blocks, events.f_bfree, events.f_bavail),
        (4096, 1000, 10, 10)
    );
    assert_eq!((events.f_files, events.f_ffree, events.f_namemax), (500, 5, 255));
}

#[test]
fn holes_are_found() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", &noise(10_000)))
    else {
        return;
    };
    let file = File::open(mounted.path("file")).expect("it is there");
    assert_eq!(seek(&file, SeekFrom::Data(100)), Ok(100));
    assert_eq!(seek(&file, SeekFrom::Hole(100)), Ok(4096));
    assert_eq!(seek(&file, SeekFrom::Hole(5000)), Ok(5000));
    assert_eq!(seek(&file, SeekFrom::Data(5000)), Err(Errno::NXIO));
    assert_eq!(seek(&file, SeekFrom::End(-1)), Ok(9999));
}

#[test]
fn a_mount_is_read_only() {
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add_file(ROOT, "file", b"some bytes");
        memory.add_directory(ROOT, "folder");
    }) else {
        return;
    };
    let (file, other) = (mounted.path("file"), mounted.path("other"));
    let attempts = [
        File::create(&other).map(drop),
        OpenOptions::new().append(true).open(&file).map(drop),
        fs::write(&file, "others"),
        fs::remove_file(&file),
        fs::rename(&file, &other),
        fs::hard_link(&file, &other),
        fs::create_dir(&other),
        fs::remove_dir(mounted.path("folder")),
        fs::set_permissions(&file, Permissions::from_mode(0o777)),
        std::os::unix::fs::symlink("file", &other),
        std::os::unix::fs::chown(&file, Some(1), Some(1)),
        lsetxattr(&file, "user.colour", b"red", XattrFlags::empty()).map_err(io::Error::from),
    ];
    for (at, attempt) in attempts.into_iter().enumerate() {
        let error = attempt.expect_err("nothing can be changed");
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "attempt {at}");
    }
    assert_eq!(mounted.read("file"), b"some bytes");
}

#[test]
fn one_thread_is_enough() {
    let options = mesh_fuse::MountOptions { threads: 1, ..Default::default() };
    let bytes = noise(300_000);
    let fill = |memory: &crate::memory::MemoryFileSystem| memory.add_file(ROOT, "file", &bytes);
    let Some(mounted) = MountedFiles::with(&options, fill) else { return };
    std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| assert!(mounted.read("file") == bytes))));
    });
}
