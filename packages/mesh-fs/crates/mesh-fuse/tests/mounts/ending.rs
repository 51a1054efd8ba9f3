//! All ways in which a mount can end.

use crate::memory::{Content, MemoryFileSystem};
use crate::mounted_files::{
    KillOnDrop, LIMIT, MountedFiles, folder, is_in_table, noise, or_skip, text, wait_out_of_table,
};
use mesh_fuse::{Mount, MountOptions, Panicked, ROOT};
use rustix::mount::{UnmountFlags, unmount};
use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// Environment variable with the mountpoint of a child process.
pub(crate) const PLACE: &str = "MESH_FUSE_TEST_PLACE";

#[test]
fn reads_of_open_files_fail_after_the_mount_is_closed() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", &noise(2 << 20)))
    else {
        return;
    };
    let file = File::open(mounted.path("file")).expect("it is there");
    file.read_exact_at(&mut [0; 10], 0).expect("it can be read");
    assert!(mounted.mount.is_open() && is_in_table(mounted.mount.source()));
    mounted.mount.close().expect("it is ours");
    assert!(!mounted.mount.is_open() && !is_in_table(mounted.mount.source()));
    // An offset that was not read ahead.
    file.read_exact_at(&mut [0; 10], (2 << 20) - 10).expect_err("nobody answers");
    assert!(mounted.folder.path().read_dir().expect("it is there").next().is_none());
    mounted.mount.close().expect("closing again does nothing");
    mounted.mount.wait();
}

#[test]
fn suspended_reads_fail_when_the_mount_is_closed() {
    let Some(mounted) =
        MountedFiles::new(|memory| memory.add(ROOT, "late", Content::SuspendedRead(4096)))
    else {
        return;
    };
    thread::scope(|scope| {
        let reading = scope.spawn(|| fs::read(mounted.path("late")));
        let read = mounted.events.next_suspended();
        mounted.mount.close().expect("it is ours");
        reading.join().expect("it ends").expect_err("nobody answers");
        let abandoned = mounted.events.next_abandoned();
        assert_eq!(abandoned, read.reply.id());
        assert!(read.reply.is_interrupted());
        read.reply.bytes(&noise(4096));
    });
}

#[test]
fn a_blocked_invalidation_does_not_prevent_the_mount_from_closing() {
    let Some(mounted) =
        MountedFiles::new(|memory| memory.add(ROOT, "late", Content::SuspendedRead(4096)))
    else {
        return;
    };
    thread::scope(|scope| {
        let reading = scope.spawn(|| fs::read(mounted.path("late")));
        let _read = mounted.events.next_suspended();
        let (telling, tells) = channel();
        let mount = &mounted.mount;
        scope.spawn(move || {
            telling.send(()).expect("somebody waits");
            // This may run before, during or after the close.
            let _ = mount.invalidate_node(2, 0, 0);
        });
        tells.recv_timeout(LIMIT).expect("it begins");
        mounted.mount.close().expect("it is ours");
        reading.join().expect("it ends").expect_err("nobody answers");
    });
}

#[test]
fn a_server_thread_may_close_the_mount() {
    let slot: Arc<Mutex<Option<Mount>>> = Arc::default();
    let (closed, closes) = channel();
    let (taken, closed) = (Arc::clone(&slot), Mutex::new(closed));
    // The hook runs in the thread that made the call.
    let hook = move |_: &Panicked| {
        drop(taken.lock().expect("nobody panics with it").take());
        closed.lock().expect("nobody panics with it").send(()).expect("somebody waits");
    };
    let options = MountOptions { on_panic: Some(Arc::new(hook)), ..MountOptions::default() };
    let (folder, (memory, _told)) = (folder(), MemoryFileSystem::new());
    let Some(mount) = or_skip(Mount::open(folder.path(), &options, Arc::new(memory))) else {
        return;
    };
    let source = mount.source().to_owned();
    *slot.lock().expect("nobody panics with it") = Some(mount);
    fs::metadata(folder.path().join("panic")).expect_err("it panics");
    closes.recv_timeout(LIMIT).expect("it is closed");
    assert!(!is_in_table(&source));
}

#[test]
fn an_external_unmount_closes_the_mount() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", b"bytes")) else {
        return;
    };
    assert_eq!(mounted.read("file"), b"bytes");
    if let Err(error) = unmount(mounted.folder.path(), UnmountFlags::empty()) {
        return println!("skipped: cannot unmount: {error}");
    }
    mounted.mount.wait();
    assert!(!mounted.mount.is_open());
    mounted.mount.close().expect("there is nothing to do");
}

#[test]
fn open_files_are_served_after_an_external_lazy_unmount() {
    let Some(mounted) = MountedFiles::new(|memory| memory.add_file(ROOT, "file", &noise(4096)))
    else {
        return;
    };
    let file = File::open(mounted.path("file")).expect("it is there");
    if let Err(error) = unmount(mounted.folder.path(), UnmountFlags::DETACH) {
        return println!("skipped: cannot unmount: {error}");
    }
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).expect("it is served");
    assert!(bytes == noise(4096)[..] && mounted.mount.is_open());
    drop(file);
    mounted.mount.wait();
    assert!(!mounted.mount.is_open());
}

#[test]
fn a_mount_is_unmounted_after_its_mountpoint_was_renamed() {
    let (memory, _told) = MemoryFileSystem::new();
    let folder = folder();
    let (old, new) = (folder.path().join("old/a b"), folder.path().join("new"));
    fs::create_dir_all(&old).expect("there is space");
    let options = MountOptions::default();
    let Some(mount) = or_skip(Mount::open(&old, &options, Arc::new(memory))) else { return };
    fs::rename(folder.path().join("old"), new).expect("it can be renamed");
    mount.close().expect("it is ours");
    assert!(!is_in_table(mount.source()));
}

#[test]
fn closing_a_covered_mount_keeps_the_covering_mount() {
    let Some(mounted) = MountedFiles::new(|_| ()) else { return };
    let (point, flags) = (mounted.folder.path(), rustix::mount::MountFlags::empty());
    if let Err(error) = rustix::mount::mount("cover", point, "tmpfs", flags, None) {
        return println!("skipped: cannot mount: {error}");
    }
    fs::write(point.join("file"), "bytes").expect("it can be written");
    mounted.mount.close().expect_err("it is covered");
    assert_eq!(mounted.read("file"), b"bytes");
    assert!(!mounted.mount.is_open());
    unmount(point, UnmountFlags::DETACH).expect("the cover is ours");
    unmount(point, UnmountFlags::DETACH).expect("what was covered is there still");
}

/// Serves until it is killed, in a process that another test has started.
#[test]
fn child_process_serves_a_mount() {
    let Ok(place) = env::var(PLACE) else { return };
    let (memory, _told) = MemoryFileSystem::new();
    memory.add_file(ROOT, "file", b"bytes");
    let mounted = Mount::open(Path::new(&place), &MountOptions::default(), Arc::new(memory));
    let Some(mount) = or_skip(mounted) else { return };
    println!("\nserving {}", mount.source());
    mount.wait();
}

/// Starts this program as a process that serves; returns the source of its mount.
pub(crate) fn serve_elsewhere(command: &mut Command, place: &Path) -> Option<(KillOnDrop, String)> {
    let child = command
        .args(["--exact", "ending::child_process_serves_a_mount", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => KillOnDrop(child),
        Err(error) => {
            println!("skipped: cannot start {command:?}: {error}");
            return None;
        }
    };
    let lines = BufReader::new(child.0.stdout.take().expect("it is piped")).lines();
    for line in lines.map_while(Result::ok) {
        if let Some(source) = line.strip_prefix("serving ") {
            return Some((child, source.to_owned()));
        }
        println!("{line}");
    }
    None
}

#[test]
fn a_mount_is_removed_when_its_process_is_killed() {
    let folder = folder();
    // Characters that are escaped in the mount table.
    let point = folder.path().join("a b%s\\c\n");
    fs::create_dir(&point).expect("there is space");
    let mut command = Command::new(env::current_exe().expect("it runs"));
    let Some((mut child, source)) = serve_elsewhere(&mut command, &point) else { return };
    assert!(is_in_table(&source));
    assert_eq!(fs::read(point.join("file")).expect("it is served"), b"bytes");
    let open = File::open(point.join("file")).expect("it is served");
    child.0.kill().expect("it runs");
    child.0.wait().expect("it ends");
    wait_out_of_table(&source);
    assert!(point.read_dir().expect("it is there").next().is_none());
    drop(open);
}

/// Finds the guardian process of the mount with this source.
fn guardian(source: &str) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").expect("there are processes").flatten();
    let mut paths = processes.map(|process| process.path());
    paths.find(|path| {
        let mut line = Vec::new();
        let read =
            File::open(path.join("cmdline")).and_then(|mut file| file.read_to_end(&mut line));
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        read.is_ok()
            && words.contains(&b"mesh-fuse-guardian".as_slice())
            && words.contains(&source.as_bytes())
    })
}

#[test]
fn the_guardian_inherits_no_descriptors_and_exits_with_the_mount() {
    // A descriptor that other programs would inherit.
    let ours = File::open("/dev/zero").expect("there are zeros");
    let inherited: OwnedFd = rustix::io::dup(&ours).expect("there are more descriptors");
    let Some(mounted) = MountedFiles::new(|_| ()) else { return };
    let started = Instant::now();
    // The arguments of a process become visible some time after its start.
    let process = loop {
        if let Some(process) = guardian(mounted.mount.source()) {
            break process;
        }
        assert!(started.elapsed() < LIMIT, "there is no guardian");
        thread::yield_now();
    };
    let target = |fd: &str| fs::read_link(process.join("fd").join(fd)).expect("it is open");
    assert!(text(&target("0")).starts_with("socket:"));
    assert_eq!((text(&target("1")), text(&target("2"))), ("/dev/null", "/dev/null"));
    let fds = fs::read_dir(process.join("fd")).expect("it has descriptors").flatten();
    // Ignore descriptors that the shell closes during its start.
    let targets: Vec<_> = fds.filter_map(|fd| fs::read_link(fd.path()).ok()).collect();
    let is_ours =
        |target: &PathBuf| target.starts_with("/dev/zero") || target.starts_with("/dev/fuse");
    assert!(!targets.iter().any(is_ours), "{targets:?}");
    drop(inherited);
    let stat = fs::read_to_string(process.join("stat")).expect("it runs");
    let fields: Vec<_> = stat.rsplit_once(')').expect("it has a name").1.split(' ').collect();
    let pid = process.file_name().expect("it has a number");
    assert_eq!(fields[4], text(Path::new(pid)), "it is in a session of its own");
    mounted.mount.close().expect("it is ours");
    assert!(guardian(mounted.mount.source()).is_none());
}
