//! Reads of bytes that arrive later, or never.

use crate::memory::{Content, MemoryFileSystem};
use crate::mounted_files::{KillOnDrop, LIMIT, MountedFiles, noise, text};
use mesh_fuse::{Errno, MountOptions, Panicked, ROOT};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

fn suspended(memory: &MemoryFileSystem) {
    memory.add(ROOT, "late", Content::SuspendedRead(4096));
    memory.add_file(ROOT, "other", b"other");
}

/// Starts a process that reads the start of a file, with or without the page cache.
fn reader(mounted: &MountedFiles, name: &str, is_direct: bool) -> KillOnDrop {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", text(&mounted.path(name)))).args(["of=/dev/null", "bs=4096"]);
    if is_direct {
        command.arg("iflag=direct");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDrop(command.spawn().expect("there is dd"))
}

#[test]
fn a_read_can_complete_later_from_another_thread() {
    let Some(mounted) = MountedFiles::new(suspended) else { return };
    thread::scope(|scope| {
        let reading = scope.spawn(|| mounted.read("late"));
        let read = mounted.events.next_suspended();
        assert_eq!((read.offset, read.len), (0, 4096));
        assert!(!read.reply.is_interrupted());
        // Other reads do not have to wait.
        assert_eq!(mounted.read("other"), b"other");
        read.reply.bytes(&noise(4096));
        assert!(reading.join().expect("it reads") == noise(4096));
    });
}

#[test]
fn more_reads_than_threads_can_be_suspended() {
    let options = MountOptions { threads: 2, ..MountOptions::default() };
    let names: Vec<_> = (0..20).map(|at| format!("late {at}")).collect();
    let Some(mounted) = MountedFiles::with(&options, |memory| {
        for name in &names {
            memory.add(ROOT, name, Content::SuspendedRead(100));
        }
        memory.add_file(ROOT, "other", b"other");
    }) else {
        return;
    };
    thread::scope(|scope| {
        let read = |name| mounted.read(name);
        let reading: Vec<_> =
            names.iter().map(|name| scope.spawn(move || read(name.as_str()))).collect();
        let read: Vec<_> = (0..20).map(|_| mounted.events.next_suspended()).collect();
        assert_eq!(mounted.read("other"), b"other");
        for read in read {
            let byte = [read.ino as u8; 60];
            // Excess bytes are ignored.
            read.reply.slices(&[&byte, &byte, &[0; 5000]]);
        }
        for (at, reading) in reading.into_iter().enumerate() {
            let bytes = reading.join().expect("it reads");
            let byte = at as u8 + 2;
            assert!(bytes.len() == 100 && bytes.iter().all(|read| *read == byte), "{at}");
        }
    });
}

#[test]
fn a_failed_read_returns_its_error() {
    let Some(mounted) = MountedFiles::new(|memory| {
        memory.add(ROOT, "broken", Content::Broken(Errno::TIMEDOUT));
        memory.add(ROOT, "strange", Content::Broken(Errno::from_raw_os_error(600)));
        memory.add(ROOT, "dropped", Content::Dropped);
    }) else {
        return;
    };
    let error = |name| fs::read(mounted.path(name)).expect_err("it is broken").raw_os_error();
    assert_eq!(error("broken"), Some(Errno::TIMEDOUT.raw_os_error()));
    assert_eq!(error("strange"), Some(Errno::IO.raw_os_error()));
    assert_eq!(error("dropped"), Some(Errno::IO.raw_os_error()));
}

#[test]
fn a_killed_reader_does_not_wait() {
    for is_direct in [false, true] {
        let Some(mounted) = MountedFiles::new(suspended) else { return };
        let mut reader = reader(&mounted, "late", is_direct);
        let read = mounted.events.next_suspended();
        reader.0.kill().expect("it runs");
        let status = reader.0.wait().expect("it ends");
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
        // The read may be cancelled already; the reply is harmless.
        read.reply.bytes(&noise(4096));
        assert_eq!(mounted.read("other"), b"other");
    }
}

#[test]
fn an_interrupted_read_returns_and_the_file_system_is_notified() {
    let Some(mounted) = MountedFiles::new(suspended) else { return };
    let mut reader = reader(&mounted, "late", true);
    let read = mounted.events.next_suspended();
    let pid = Pid::from_raw(reader.0.id().cast_signed()).expect("it is a process");
    kill_process(pid, Signal::INT).expect("it runs");
    let abandoned = mounted.events.next_abandoned();
    assert_eq!(abandoned, read.reply.id());
    assert!(read.reply.is_interrupted());
    assert!(!reader.0.wait().expect("it ends").success());
    read.reply.error(Errno::IO);
    assert_eq!(mounted.read("other"), b"other");
}

#[test]
fn a_panic_becomes_an_error_and_is_reported() {
    let (panicked, panics) = channel();
    let panicked = Mutex::new(panicked);
    let hook = move |events: &Panicked| {
        let _ = panicked.lock().expect("nobody panics with it").send(events.clone());
        panic!("a hook that panics does no harm either");
    };
    let options = MountOptions { on_panic: Some(Arc::new(hook)), ..MountOptions::default() };
    let Some(mounted) = MountedFiles::with(&options, |memory| {
        memory.add(ROOT, "panicking", Content::Panicking);
        memory.add_file(ROOT, "other", b"other");
    }) else {
        return;
    };
    let is_io = |error: io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
    assert!(fs::metadata(mounted.path("panic")).is_err_and(is_io));
    let events = panics.recv_timeout(LIMIT).expect("it is told");
    assert_eq!((events.call, events.message.as_str()), ("lookup", "this name panics"));
    assert!(fs::read(mounted.path("panicking")).is_err_and(is_io));
    let events = panics.recv_timeout(LIMIT).expect("it is told");
    assert_eq!((events.call, events.message.as_str()), ("read", "this file panics"));
    // More often than the number of threads.
    (0..10).for_each(|_| drop(fs::metadata(mounted.path("panic"))));
    assert_eq!(mounted.read("other"), b"other");
}
