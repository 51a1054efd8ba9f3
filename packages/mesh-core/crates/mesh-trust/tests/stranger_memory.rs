//! Memory usage of connections from unauthenticated peers. These tests have a dedicated process and
//! run one at a time, because they measure the resident memory of the whole process.

mod pair;

use mesh_trust::Role;
use mesh_trust::handshake::HANDSHAKE_LEN_MAX;
use pair::{JOB, NOW, identity, trust_at};
use std::sync::{Mutex, MutexGuard, PoisonError};

static MEASURING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn ten_thousand_half_open_connections_use_little_memory() {
    let _alone = alone();
    let trust = trust_at(&identity(&pair::authority(JOB), Role::Worker), &Role::ALL, NOW);
    let before = resident_len();
    // Each peer has sent the header of a record with the maximum length, and then nothing.
    let waiting: Vec<_> = (0..10_000)
        .map(|_| {
            let mut server = trust.accept();
            server.feed(&[22, 3, 1, 0x1f, 0xfa, 1]).expect("nothing is wrong yet");
            server
        })
        .collect();
    let taken = resident_len().saturating_sub(before);
    assert!(taken < 10_000 * (HANDSHAKE_LEN_MAX + 1024), "{taken} bytes for {}", waiting.len());
}

#[test]
fn connections_that_stop_after_a_hello_use_bounded_memory() {
    let _alone = alone();
    let authority = pair::authority(JOB);
    let trust = trust_at(&identity(&authority, Role::Worker), &Role::ALL, NOW);
    let client = trust.connect().expect("it can speak");
    let before = resident_len();
    let waiting: Vec<_> = (0..1000)
        .map(|_| {
            let mut server = trust.accept();
            server.feed(client.pending()).expect("a hello");
            server
        })
        .collect();
    let taken = resident_len().saturating_sub(before);
    let share = taken / waiting.len();
    assert!(share < 4 * HANDSHAKE_LEN_MAX, "{share} bytes each");
}

fn resident_len() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<usize>().ok());
    kilobytes.expect("a number of kilobytes") << 10
}
