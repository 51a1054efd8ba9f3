//! Message events in files: all of them in order, even if the reader or the files are late.

use mesh_runtime::events::{
    Event, EventKind, Events, HEADER_LEN, LogFile, LogNames, LogState, RECORD_LEN, Subject,
};
use mesh_wire::id::{PortId, ProcId};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BASE_NS: i64 = 5_000_000;

/// A directory that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mesh-log-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("the folder of temporary files is there");
        Self(path)
    }

    fn file(&self, number: u32, records: usize) -> LogFile {
        let initial_path = self.0.join(format!("{number}.coming"));
        let len = HEADER_LEN + records * RECORD_LEN;
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&initial_path);
        let file = file.expect("nobody else has it");
        file.set_len(len as u64).expect("there is space");
        let prefix = format!("{}/{number}.", self.0.display());
        let suffix = ".seg".to_owned();
        let names = LogNames { initial_path, prefix, suffix, time_base_ns: BASE_NS };
        LogFile::open(file.as_fd(), len, names).expect("it can be mapped")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn event(at: u64) -> Event {
    let (peer, call) = (ProcId::new(0, 1), PortId(at + 100));
    let (kind, port, subject) = (EventKind::Sent, PortId(20), Subject::default());
    Event {
        at: Duration::from_micros(at),
        kind,
        port,
        peer,
        call,
        rank: 0,
        code: 0,
        len: 1,
        subject,
    }
}

fn word(content: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(content[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the times of the records that a reader finds in a file, in microseconds.
fn times(path: &Path) -> Vec<u64> {
    let content = fs::read(path).expect("it is there");
    let count = usize::try_from(word(&content, 16)).expect("so much fits");
    (0..count).map(|at| word(&content, HEADER_LEN + at * RECORD_LEN) / 1000).collect()
}

fn state(events: &mut Events, log: u32) -> LogState {
    events.log(log).expect("it is open").take_state()
}

#[test]
fn events_are_written_to_the_file_immediately() {
    let folder = Folder::new("at-once");
    let mut events = Events::default();
    assert!(!events.is_on());
    let log = events.open_log(4, false);
    assert!(events.is_on());
    events.log(log).expect("it is open").add_file(folder.file(1, 4));
    assert!(state(&mut events, log).started.is_empty(), "a file without an event has no name");
    for at in 1..=3 {
        events.push(event(at));
        let path = folder.0.join("1.5001.seg");
        assert_eq!(times(&path), (1..=at).collect::<Vec<_>>());
    }
    let now = state(&mut events, log);
    assert_eq!(now.started, [folder.0.join("1.5001.seg")]);
    assert_eq!(
        (now.used, now.capacity),
        (HEADER_LEN + 3 * RECORD_LEN, HEADER_LEN + 4 * RECORD_LEN)
    );
}

#[test]
fn queued_events_precede_later_ones() {
    let folder = Folder::new("waits");
    let mut events = Events::default();
    let log = events.open_log(5, false);
    for at in 1..=3 {
        events.push(event(at));
    }
    assert_eq!(state(&mut events, log).waiting, 3);
    events.log(log).expect("it is open").add_file(folder.file(1, 2));
    let first = folder.0.join("1.5001.seg");
    assert_eq!(
        word(&fs::read(&first).expect("it was begun"), 32),
        1,
        "a reader sees that more waits"
    );
    events.push(event(4));
    events.log(log).expect("it is open").add_file(folder.file(2, 9));
    events.push(event(5));
    assert_eq!(times(&first), [1, 2]);
    assert_eq!(times(&folder.0.join("2.5003.seg")), [3, 4, 5]);
    let now = state(&mut events, log);
    assert_eq!((now.waiting, now.dropped, now.ready), (0, 0, 0));
    assert_eq!(now.completed.iter().map(|one| one.path().clone()).collect::<Vec<_>>(), [first]);
}

#[test]
fn the_oldest_events_are_dropped_while_there_is_no_file() {
    let folder = Folder::new("oldest");
    let mut events = Events::default();
    let log = events.open_log(3, false);
    (1..=5).for_each(|at| events.push(event(at)));
    assert_eq!(state(&mut events, log).dropped, 2);
    events.log(log).expect("it is open").add_file(folder.file(1, 9));
    assert_eq!(times(&folder.0.join("1.5003.seg")), [3, 4, 5]);
}

#[test]
fn a_rotation_starts_another_file() {
    let folder = Folder::new("turn");
    let mut events = Events::default();
    let log = events.open_log(3, false);
    events.log(log).expect("it is open").rotate();
    (1..=2)
        .for_each(|number| events.log(log).expect("it is open").add_file(folder.file(number, 9)));
    events.push(event(1));
    events.log(log).expect("it is open").rotate();
    events.push(event(2));
    assert_eq!(times(&folder.0.join("1.5001.seg")), [1]);
    assert_eq!(times(&folder.0.join("2.5002.seg")), [2]);
    let completed = events.close_log(log).expect("it was open").take_state().completed;
    assert_eq!(completed[0].len(), HEADER_LEN + RECORD_LEN);
    assert!(!events.is_on());
}

#[test]
fn early_events_go_to_the_first_subscriber_that_requests_them() {
    let folder = Folder::new("early");
    for since_start in [true, false] {
        let mut events = Events::default();
        events.start_early(9);
        events.push(event(1));
        let log = events.open_log(9, since_start);
        assert_eq!(state(&mut events, log).waiting, usize::from(since_start));
        events.push(event(2));
        assert_eq!(events.take(9).0.len(), 0, "nobody takes events");
    }
    drop(folder);
}

#[test]
fn a_stream_and_two_logs_contain_the_same_events() {
    let folder = Folder::new("both");
    let mut events = Events::default();
    events.start(9);
    let logs = [events.open_log(9, false), events.open_log(9, false)];
    for (number, log) in logs.into_iter().enumerate() {
        events.log(log).expect("it is open").add_file(folder.file(number as u32, 9));
    }
    events.push(event(1));
    assert_eq!(events.take(9).0.len(), RECORD_LEN);
    assert_eq!(times(&folder.0.join("0.5001.seg")), times(&folder.0.join("1.5001.seg")));
    events.stop();
    assert!(events.is_on(), "logs go on");
}

#[test]
fn a_file_too_short_for_a_record_is_refused() {
    let file = File::open("/dev/null").expect("every system has it");
    let names = LogNames {
        initial_path: PathBuf::new(),
        prefix: String::new(),
        suffix: String::new(),
        time_base_ns: 0,
    };
    LogFile::open(file.as_fd(), HEADER_LEN + RECORD_LEN - 1, names).expect_err("it is too short");
}
