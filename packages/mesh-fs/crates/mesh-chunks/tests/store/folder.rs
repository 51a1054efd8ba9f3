//! A store only uses folders to which no other user can write.

use crate::material::{SMALL, chunks, folder, open, put};
use mesh_chunks::{Store, StoreError};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

fn refusal(folder: &Path) -> StoreError {
    Store::open(folder, SMALL).map(|_| ()).expect_err("the folder is refused")
}

#[test]
fn the_folder_and_its_files_are_private_to_the_user() {
    let above = folder();
    let folder = above.path().join("new/chunks");
    put(&open(&folder, SMALL), &chunks(0..1));
    assert_eq!(fs::metadata(&folder).expect("it was made").mode() & 0o777, 0o700);
    for entry in fs::read_dir(&folder).expect("it is listed") {
        let mode = entry.and_then(|entry| entry.metadata()).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn a_folder_writable_by_others_is_refused() {
    let folder = folder();
    for mode in [0o777, 0o720, 0o702, 0o1777] {
        fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("it is ours");
        let error = refusal(folder.path());
        assert!(matches!(error, StoreError::Exposed { mode: told, .. } if told == mode), "{error}");
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("it is ours");
    open(folder.path(), SMALL);
}

#[test]
fn a_folder_of_another_user_is_refused() {
    let folder = folder();
    let is_given_away = chown(folder.path(), Some(12_345), None).is_ok();
    // If `chown` is not permitted, this process is not root and `/usr` belongs to another user.
    let foreign = if is_given_away { folder.path() } else { Path::new("/usr") };
    let error = refusal(foreign);
    let StoreError::Foreign { owner, user, .. } = &error else { panic!("{error}") };
    assert_ne!(owner, user);
    assert!(error.to_string().contains("use a folder that"), "{error}");
}

#[test]
fn a_file_in_place_of_the_folder_is_refused() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("it is written");
    assert!(matches!(refusal(&file), StoreError::System { .. }));
}

#[test]
fn unrelated_files_in_the_folder_are_not_touched() {
    let folder = folder();
    for name in ["notes.txt", "1.pack", "xyz.index", "0000000000000001.pack.old"] {
        fs::write(folder.path().join(name), "mine").expect("it is written");
    }
    let options = mesh_chunks::StoreOptions { budget_bytes: 10_000, ..SMALL };
    put(&open(folder.path(), options), &chunks(0..20));
    for name in ["notes.txt", "1.pack", "xyz.index", "0000000000000001.pack.old"] {
        assert_eq!(fs::read(folder.path().join(name)).expect("it is there"), b"mine");
    }
}
