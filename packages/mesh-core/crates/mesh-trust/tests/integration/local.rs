//! The authority of a user is created once, renewed in time, and loaded only from a private folder.

use crate::pair;
use crate::pair::{NOW, time};
use mesh_trust::local::LOCAL_VALID_FOR;
use mesh_trust::{Authority, Role, TrustError};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::sync::Barrier;

const THREADS: usize = 16;

/// The path of a private folder that does not exist yet. Its parent is removed on drop.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mesh-local-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary folder can be written");
        Self(path)
    }

    fn folder(&self) -> PathBuf {
        self.0.join("mesh/local")
    }

    fn load(&self, now: u64) -> Result<Authority, TrustError> {
        Authority::local(&self.folder(), time(now))
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder()).expect("it exists");
        let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("it is text");
        let mut names: Vec<_> = entries.map(|entry| name(entry.expect("it is there"))).collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether a worker and a controller with certificates of two authorities accept each other.
fn accept_each_other(worker: &Authority, controller: &Authority, now: u64) -> bool {
    let issue = |authority: &Authority, role| {
        authority.issue(role, "local", time(now)).expect("the authority is valid")
    };
    let server = pair::trust_at(&issue(worker, Role::Worker), &Role::ALL, now).accept();
    let client = pair::trust_at(&issue(controller, Role::Controller), &[Role::Worker], now);
    let results =
        pair::run_handshake(server, client.connect().expect("there is randomness"), usize::MAX);
    results.server.is_ok() && results.client.is_ok()
}

#[test]
fn the_second_program_loads_the_authority_of_the_first() {
    let place = Place::new("second");
    let (first, second) = (place.load(NOW).expect("created"), place.load(NOW).expect("loaded"));
    assert_eq!(first.to_pem(), second.to_pem());
    assert!(accept_each_other(&first, &second, NOW));
    assert_eq!(place.files(), ["authority-1.pem"], "no draft is left behind");
    let mode = |path: PathBuf| fs::metadata(path).expect("it is there").mode() & 0o7777;
    assert_eq!(mode(place.folder()), 0o700);
    assert_eq!(mode(place.folder().join("authority-1.pem")), 0o600);
}

#[test]
fn programs_that_start_concurrently_share_one_authority() {
    let place = Place::new("at-once");
    let start = Barrier::new(THREADS);
    let load = || {
        start.wait();
        place.load(NOW).expect("created by one, loaded by the others").to_pem()
    };
    let texts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    assert!(texts.iter().all(|text| *text == texts[0]));
    assert_eq!(place.files(), ["authority-1.pem"]);
}

#[test]
fn programs_that_renew_concurrently_share_one_authority() {
    let place = Place::new("renew-at-once");
    place.load(NOW).expect("created");
    let late = NOW + LOCAL_VALID_FOR.as_secs() + 1;
    let start = Barrier::new(THREADS);
    let load = || {
        start.wait();
        place.load(late).expect("renewed by one, loaded by the others").to_pem()
    };
    let texts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    assert!(texts.iter().all(|text| *text == texts[0]));
    assert_eq!(place.files(), ["authority-2.pem"]);
}

#[test]
fn an_authority_is_renewed_before_it_expires_and_both_generations_are_accepted() {
    let place = Place::new("renewed");
    let old = place.load(NOW).expect("created");
    let due = old.renew_at().as_secs();
    assert_eq!(place.load(due - 1).expect("loaded").to_pem(), old.to_pem());
    let new = place.load(due).expect("renewed");
    assert_ne!(new.to_pem(), old.to_pem());
    assert!(accept_each_other(&old, &new, due));
    assert!(accept_each_other(&new, &old, due));
}

#[test]
fn an_expired_authority_is_replaced() {
    let place = Place::new("expired");
    let old = place.load(NOW).expect("created");
    let late = old.expires_at().as_secs() + 1;
    let new = place.load(late).expect("replaced");
    assert!(new.expires_at().as_secs() > late);
    let again = place.load(late).expect("loaded");
    assert!(accept_each_other(&new, &again, late));
}

#[test]
fn an_authority_from_the_future_is_replaced() {
    let place = Place::new("future");
    place.load(NOW + 1_000_000).expect("created while the clock was wrong");
    let new = place.load(NOW).expect("replaced");
    assert!(accept_each_other(&new, &new, NOW));
}

#[test]
fn a_folder_or_file_that_others_can_use_is_refused() {
    let place = Place::new("open");
    place.load(NOW).expect("created");
    let set = |path: PathBuf, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
    };
    for mode in [0o750, 0o705, 0o770, 0o1777] {
        set(place.folder(), mode);
        let error = place.load(NOW).expect_err("others can enter it");
        assert_eq!(error, TrustError::FolderOpenToOthers { path: place.folder(), mode });
        assert!(error.to_string().ends_with("chmod 700 it"), "{error}");
    }
    set(place.folder(), 0o700);
    let file = place.folder().join("authority-1.pem");
    set(file.clone(), 0o640);
    let error = place.load(NOW).expect_err("others can read it");
    assert_eq!(error, TrustError::OpenToOthers { path: file, mode: 0o640 });
}

#[test]
fn a_symbolic_link_is_refused() {
    let (place, elsewhere) = (Place::new("link"), Place::new("link-target"));
    elsewhere.load(NOW).expect("created");
    fs::create_dir_all(place.folder().parent().expect("it has one")).expect("it is ours");
    symlink(elsewhere.folder(), place.folder()).expect("it is ours");
    let error = place.load(NOW).expect_err("the folder is a link").to_string();
    assert!(error.contains("symbolic link"), "{error}");
    fs::remove_file(place.folder()).expect("it is ours");
    place.load(NOW).expect("created");
    let file = place.folder().join("authority-1.pem");
    fs::remove_file(&file).expect("it is ours");
    symlink(elsewhere.folder().join("authority-1.pem"), &file).expect("it is ours");
    assert!(matches!(place.load(NOW), Err(TrustError::Io { .. })), "the file is a link");
}

#[test]
fn a_folder_or_file_of_another_user_is_refused() {
    let place = Place::new("owner");
    place.load(NOW).expect("created");
    let us = fs::metadata(place.folder()).expect("it is there").uid();
    let file = place.folder().join("authority-1.pem");
    for path in [file, place.folder()] {
        if chown(&path, Some(us + 1), None).is_err() {
            // Only root can change the owner of a file; otherwise there is nothing to test.
            assert_ne!(us, 0);
            return;
        }
        let error = place.load(NOW).expect_err("it is another user's");
        assert_eq!(error, TrustError::OtherOwner { path, owner: us + 1, us });
    }
}

#[test]
fn the_error_for_a_file_that_is_not_an_authority_says_what_to_do() {
    let place = Place::new("malformed");
    place.load(NOW).expect("created");
    fs::write(place.folder().join("authority-1.pem"), "nonsense").expect("it is ours");
    let error = place.load(NOW).expect_err("it holds no key").to_string();
    assert!(error.contains("authority-1.pem") && error.contains("remove it"), "{error}");
}
