//! Cases in which a mount is refused.

use crate::memory::MemoryFileSystem;
use crate::mounted_files::{MountedFiles, folder, or_skip};
use mesh_fuse::{Mount, MountError, MountOptions, ROOT};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

fn refused(point: &Path) -> MountError {
    let (memory, _told) = MemoryFileSystem::new();
    let refused = Mount::open(point, &MountOptions::default(), Arc::new(memory));
    let error = refused.expect_err("nothing can be mounted there");
    assert!(!error.is_forbidden(), "{error}");
    error
}

#[test]
fn the_mountpoint_has_to_be_an_empty_directory() {
    let folder = folder();
    let file = folder.path().join("file");
    assert!(matches!(refused(&file), MountError::MountpointMissing { .. }));
    fs::write(&file, "").expect("there is space");
    assert!(matches!(refused(&file), MountError::MountpointNotDirectory { .. }));
    assert!(matches!(refused(&file.join("below")), MountError::MountpointNotDirectory { .. }));
    assert!(matches!(refused(folder.path()), MountError::MountpointNotEmpty { .. }));
}

#[test]
fn a_dead_mount_is_distinguished_from_other_failures() {
    let folder = folder();
    let device = match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        Err(error) => return println!("skipped: cannot open /dev/fuse: {error}"),
    };
    let events = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let events = CString::new(events).expect("it has no zero");
    let mounted = mount("dead", folder.path(), "fuse.dead", MountFlags::empty(), events.as_c_str());
    if let Err(error) = mounted {
        return println!("skipped: cannot mount: {error}");
    }
    drop(device);
    assert!(matches!(refused(folder.path()), MountError::MountpointDead { .. }));
    unmount(folder.path(), UnmountFlags::DETACH).expect("it was mounted");
}

#[test]
fn over_full_allows_a_mount_over_a_non_empty_directory() {
    let (memory, _told) = MemoryFileSystem::new();
    memory.add_file(ROOT, "shown", b"");
    let folder = folder();
    fs::write(folder.path().join("hidden"), "").expect("there is space");
    let options = MountOptions { over_full: true, ..MountOptions::default() };
    let mounted = Mount::open(folder.path(), &options, Arc::new(memory));
    let Some(mount) = or_skip(mounted) else { return };
    assert!(folder.path().join("shown").exists() && !folder.path().join("hidden").exists());
    drop(mount);
    assert!(folder.path().join("hidden").exists());
}

#[test]
fn each_source_is_unique_and_sanitized() {
    let options = MountOptions { name: "my files, #1: ü".into(), ..MountOptions::default() };
    let Some(one) = MountedFiles::with(&options, |_| ()) else { return };
    let Some(other) = MountedFiles::with(&options, |_| ()) else { return };
    assert_ne!(one.mount.source(), other.mount.source());
    let (name, number) = one.mount.source().rsplit_once('-').expect("it has a number");
    assert_eq!(name, "my-files---1:--");
    assert_eq!(number.len(), 16);
    assert_eq!(one.mount.mountpoint(), one.folder.path().canonicalize().expect("it is there"));
}
