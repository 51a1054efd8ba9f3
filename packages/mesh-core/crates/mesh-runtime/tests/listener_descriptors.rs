//! A process that has run out of descriptors.
//!
//! The test has its own file because this affects the whole process.

mod client_connections;

use client_connections::{LIMIT, TestListener, members};
use mesh_runtime::engine::listener::ListenerLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::net::TcpStream;

#[test]
fn pending_connections_are_evicted_when_no_descriptors_are_left() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).expect("it is less");
    let by_default = ListenerLimits::default();
    assert_eq!(by_default.pending_max, 32, "the process itself needs most");
    let (worker, controller) = members();
    let limits = ListenerLimits { first_frame_max: LIMIT, pending_max: 1000 };
    let server = TestListener::open(worker, limits);
    let clients: Vec<_> = (0..20).filter_map(|_| TcpStream::connect(server.at).ok()).collect();
    assert!(server.serves(&controller), "all who came before have been let in");
    // Use up the remaining descriptors.
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // Keep one descriptor for our end of a connection, and none for the other end.
    files.truncate(files.len() - 1);
    let mine = server.connect(&controller);
    assert!(mine.is_ok(), "a pending connection was evicted: {:?}", mine.err());
    drop((mine, files, clients));
    assert!(server.serves(&controller));
}
