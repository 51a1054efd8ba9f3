//! Mounting without root privileges.

use crate::ending::serve_elsewhere;
use crate::memory::MemoryFileSystem;
use crate::mounted_files::{folder, is_in_table, or_skip, wait_out_of_table};
use mesh_fuse::{Mount, MountOptions, ROOT};
use rustix::process::geteuid;
use std::env;
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Environment variable with the mountpoint of a child process that mounts and unmounts.
const PLACE: &str = "MESH_FUSE_TEST_TRY_PLACE";
/// User id of an unprivileged user.
const NOBODY: u32 = 65534;

/// Mounts and unmounts, in a process that another test has started.
#[test]
fn child_process_mounts_and_unmounts() {
    let Ok(place) = env::var(PLACE) else { return };
    let (memory, _told) = MemoryFileSystem::new();
    memory.add_file(ROOT, "file", b"bytes");
    let mounted = Mount::open(Path::new(&place), &MountOptions::default(), Arc::new(memory));
    let Some(mount) = or_skip(mounted) else { return };
    assert_eq!(fs::read(Path::new(&place).join("file")).expect("it is served"), b"bytes");
    let open = fs::File::open(Path::new(&place).join("file")).expect("it is served");
    assert!(is_in_table(mount.source()));
    mount.close().expect("it is ours");
    assert!(!is_in_table(mount.source()));
    drop(open);
    println!("\ndone");
}

fn check(command: &mut Command, place: &Path) {
    let output = command
        .args(["--exact", "rights::child_process_mounts_and_unmounts", "--nocapture"])
        .env(PLACE, place)
        .output();
    match output {
        Err(error) => println!("skipped: cannot start {command:?}: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            println!("{said}{}", String::from_utf8_lossy(&output.stderr));
            let is_skipped = said.contains("skipped: ") || !said.contains("running 1 test");
            assert!(is_skipped || (output.status.success() && said.contains("\ndone")));
        }
    }
}

/// Returns a command that runs this program as an unprivileged user, and a folder of that user.
fn as_nobody() -> Option<(Command, tempfile::TempDir)> {
    if !geteuid().is_root() {
        println!("skipped: not root, and so cannot become somebody else");
        return None;
    }
    let place = folder();
    chown(place.path(), Some(NOBODY), Some(NOBODY)).expect("root may give it away");
    let mut command = Command::new(env::current_exe().expect("it runs"));
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    Some((command, place))
}

#[test]
fn an_unprivileged_user_mounts_through_the_helper() {
    if let Some((mut command, place)) = as_nobody() {
        check(&mut command, place.path());
    }
}

#[test]
fn an_unprivileged_mount_is_removed_when_its_process_is_killed() {
    let Some((mut command, place)) = as_nobody() else { return };
    let Some((mut child, source)) = serve_elsewhere(&mut command, place.path()) else { return };
    assert!(is_in_table(&source));
    child.0.kill().expect("it runs");
    child.0.wait().expect("it ends");
    wait_out_of_table(&source);
}

#[test]
fn root_in_a_user_namespace_can_mount() {
    let place = folder();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount"]);
    command.arg(env::current_exe().expect("it runs"));
    check(&mut command, place.path());
}
