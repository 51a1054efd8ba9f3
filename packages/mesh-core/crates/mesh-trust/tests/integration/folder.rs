//! Keys are stored in private files, completely or not at all.

use crate::pair;
use crate::pair::{DAY, JOB, NOW, identity, time};
use mesh_trust::folder::{AUTHORITY_FILE, IDENTITY_FILE};
use mesh_trust::{Authority, Identity, Role, TrustError};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// A separate folder for a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mesh-trust-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Self(path)
    }

    fn keys(&self) -> PathBuf {
        self.0.join("keys")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// A folder that contains the identity of a worker.
fn saved(name: &str) -> (Folder, PathBuf) {
    let folder = Folder::new(name);
    identity(&pair::authority(JOB), Role::Worker).save(&folder.keys()).expect("it can be saved");
    let file = folder.keys().join(IDENTITY_FILE);
    (folder, file)
}

#[test]
fn saved_credentials_can_be_loaded() {
    let folder = Folder::new("survive");
    let first = pair::authority(JOB);
    for authority in [first.rotate(DAY, time(NOW)).expect("it is valid"), first] {
        authority.save(&folder.keys()).expect("it can be saved");
        identity(&authority, Role::Controller).save(&folder.keys()).expect("it can be saved");
        let again = Authority::load(&folder.keys()).expect("it is ours").expect("it is there");
        assert_eq!(again.to_pem(), authority.to_pem());
        let member = Identity::load(&folder.keys()).expect("it is ours");
        assert_eq!(member.me().generation(), authority.generation());
        // A loaded authority signs for the same job.
        let (server, client) = pair::both(&identity(&again, Role::Worker), &member);
        assert!(pair::run_handshake(server, client, usize::MAX).server.is_ok());
    }
    let names = fs::read_dir(folder.keys()).expect("it is ours").count();
    assert_eq!(names, 2, "no draft stays behind");
}

#[test]
fn a_worker_holds_no_authority() {
    let (folder, _file) = saved("worker");
    assert!(Authority::load(&folder.keys()).expect("it is ours").is_none());
    assert!(!folder.keys().join(AUTHORITY_FILE).exists());
}

#[test]
fn only_the_owner_can_access_the_files() {
    let (folder, file) = saved("modes");
    assert_eq!((mode(&folder.keys()), mode(&file)), (0o700, 0o600));
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let (folder, file) = saved("open");
    for bits in [0o640, 0o604, 0o660, 0o610] {
        set_mode(&file, bits);
        let error = Identity::load(&folder.keys()).expect_err("others can use it");
        assert_eq!(error, TrustError::OpenToOthers { path: file.clone(), mode: bits });
        let said = error.to_string();
        assert!(said.contains(&format!("(mode {bits:04o}): chmod 600 it")), "{said}");
    }
    set_mode(&file, 0o400);
    Identity::load(&folder.keys()).expect("its owner may only read it");
}

#[test]
fn a_folder_that_others_can_change_is_refused() {
    let (folder, _file) = saved("shared");
    set_mode(&folder.keys(), 0o777);
    let loaded = Identity::load(&folder.keys()).expect_err("others could swap the key");
    assert!(matches!(loaded, TrustError::FolderOpenToOthers { mode: 0o777, .. }), "{loaded}");
    let saved = identity(&pair::authority(JOB), Role::Worker).save(&folder.keys());
    assert!(matches!(saved, Err(TrustError::FolderOpenToOthers { .. })));
}

#[test]
fn a_key_of_another_user_is_refused() {
    let (folder, file) = saved("owner");
    let us = fs::metadata(&file).expect("it is there").uid();
    if chown(&file, Some(us + 1), None).is_err() {
        // Only root can change the owner of a file; otherwise there is nothing to test.
        assert_ne!(us, 0);
        return;
    }
    let error = Identity::load(&folder.keys()).expect_err("it is another user's");
    assert_eq!(error, TrustError::OtherOwner { path: file, owner: us + 1, us });
}

#[test]
fn a_truncated_or_modified_file_is_refused() {
    let (folder, file) = saved("cut");
    let text = fs::read_to_string(&file).expect("it is text");
    let other = identity(&pair::authority(JOB), Role::Worker).to_pem();
    let other_key = &other[..other.find("-----BEGIN CERTIFICATE").expect("it has one")];
    let rest = &text[text.find("-----BEGIN CERTIFICATE").expect("it has one")..];
    for wrong in [
        String::new(),
        text[..text.len() / 2].to_owned(),
        text[..text.rfind("-----BEGIN").expect("it has blocks")].to_owned(),
        rest.to_owned(),
        format!("{other_key}{rest}"),
        text.replace("PRIVATE", "PUBLIC"),
        "x".repeat(100_000),
        text.repeat(2),
    ] {
        fs::write(&file, &wrong).expect("it is ours");
        let error = Identity::load(&folder.keys()).expect_err("it is no identity");
        assert!(matches!(error, TrustError::Malformed { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("identity.pem cannot be read, ") && said.len() < 400, "{said}");
    }
}

#[test]
fn a_pipe_instead_of_a_key_is_refused_without_blocking() {
    let (folder, file) = saved("pipe");
    fs::remove_file(&file).expect("it is ours");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    assert!(matches!(Identity::load(&folder.keys()), Err(TrustError::Malformed { .. })));
}

#[test]
fn a_link_to_a_private_file_is_followed() {
    // Secrets are often mounted as links into a folder that is replaced as a whole.
    let (folder, file) = saved("link");
    let elsewhere = folder.0.join("elsewhere.pem");
    fs::rename(&file, &elsewhere).expect("it is ours");
    symlink(&elsewhere, &file).expect("it is ours");
    Identity::load(&folder.keys()).expect("what it leads to is private");
    set_mode(&elsewhere, 0o644);
    assert!(matches!(Identity::load(&folder.keys()), Err(TrustError::OpenToOthers { .. })));
}

#[test]
fn the_error_names_a_missing_file() {
    let folder = Folder::new("missing");
    let said = Identity::load(&folder.keys()).expect_err("it is not there").to_string();
    assert!(said.contains("keys/identity.pem cannot be read: No such file"), "{said}");
}
